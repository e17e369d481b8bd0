// The two pinned buffers, on a device whose copies are done as late as they may be, in any order, or
// never.
#include "clients/gpu/drain.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <optional>

#include "clients/gpu/packer.h"
#include "lib/base/prng.h"

namespace lorry::gpu {
namespace {

// Copies are done when somebody waits for them, or at any moment before. Until then a buffer holds
// rubbish, and the moment its bytes may be read ends when the next copy into it is queued.
class LateDevice : public Device {
 public:
  explicit LateDevice(uint64_t seed) : prng_(seed) {
    for (auto& buffer : buffers_) buffer.resize(kBufferBytes);
  }

  Outcome Pack(const Plan&, void*, Packed&) override { return {"nothing is packed here"}; }
  Outcome Await(const Packed&, std::chrono::milliseconds, bool&) override { return {}; }
  void Free(const Packed&) override {}
  Outcome Copy(const Packed&, int buffer, const unsigned char* from, uint64_t bytes) override {
    if (Fails()) return {"the copy was refused"};
    EXPECT_LE(bytes, kBufferBytes);
    EXPECT_GT(bytes, 0u);
    Complete(buffer);  // copies into one buffer happen in their order
    pending_[buffer] = {from, bytes};
    std::memset(buffers_[buffer].data(), 0xee, 64);
    if (bytes > 64) std::memset(&buffers_[buffer][bytes - 64], 0xee, 64);
    ++copies;
    most_pending = std::max(most_pending, Pending());
    if (prng_.Chance(300)) Complete(static_cast<int>(prng_.Below(kBuffers)));
    return {};
  }
  Outcome Wait(int buffer) override {
    if (Fails()) return {"the GPU fell off the bus"};
    if (prng_.Chance(300)) Complete(1 - buffer);
    Complete(buffer);
    return {};
  }
  const unsigned char* buffer(int buffer) const override { return buffers_[buffer].data(); }

  int fails_after = -1;  // calls
  int copies = 0, most_pending = 0;

 private:
  struct Pending_ {
    const unsigned char* from;
    uint64_t bytes;
  };
  bool Fails() { return fails_after >= 0 && fails_after-- == 0; }
  int Pending() const { return pending_[0].has_value() + pending_[1].has_value(); }
  void Complete(int buffer) {
    if (!pending_[buffer].has_value()) return;
    std::memcpy(buffers_[buffer].data(), pending_[buffer]->from, pending_[buffer]->bytes);
    pending_[buffer].reset();
  }

  Prng prng_;
  std::vector<unsigned char> buffers_[kBuffers];
  std::optional<Pending_> pending_[kBuffers];
};

std::vector<unsigned char> Bytes(uint64_t size) {
  std::vector<unsigned char> bytes(size);
  Prng prng(size);
  for (auto& byte : bytes) byte = static_cast<unsigned char>(prng.Next());
  return bytes;
}

class DrainTest : public testing::Test {
 protected:
  // Spans of `from_`, with gaps, some of them empty, some longer than a buffer.
  std::vector<Drain::Part> Parts() {
    const uint64_t cuts[] = {
        0, 0, 1, 1000, 1000, kBufferBytes + 1000, 3 * kBufferBytes + 999, from_.size()};
    std::vector<Drain::Part> parts;
    for (size_t i = 0; i + 1 < std::size(cuts); ++i)
      parts.push_back({&from_[cuts[i]], &to_[cuts[i]], cuts[i + 1] - cuts[i]});
    parts.push_back({from_.data(), to_.data(), 0});
    return parts;
  }
  const std::vector<unsigned char> from_ = Bytes(4 * kBufferBytes + 77);
  std::vector<unsigned char> to_ = std::vector<unsigned char>(from_.size());
};

TEST_F(DrainTest, LandsEveryByteInOrderWheneverCopiesAreDone) {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    LateDevice device(seed);
    std::fill(to_.begin(), to_.end(), 0);
    Drain drain(device, {}, Parts());
    uint64_t landed = 0;
    while (!drain.done()) {
      const uint64_t before = landed;
      ASSERT_EQ(drain.Next(landed).error, "");
      ASSERT_TRUE(landed > before && landed - before <= kBufferBytes);
      ASSERT_EQ(std::memcmp(&to_[before], &from_[before], landed - before), 0) << seed;
    }
    EXPECT_EQ(landed, from_.size());
    EXPECT_TRUE(to_ == from_) << seed;
    EXPECT_EQ(device.copies, 6);
    ASSERT_EQ(drain.Next(landed).error, "");
    EXPECT_EQ(landed, from_.size()) << "there is nothing more";
  }
}

TEST_F(DrainTest, CopiesIntoOneBufferWhileTheOtherIsEmptied) {
  LateDevice device(1);
  Drain drain(device, {}, Parts());
  EXPECT_EQ(device.copies, 2) << "before anybody waits";
  uint64_t landed = 0;
  ASSERT_TRUE(drain.Next(landed).ok());
  EXPECT_EQ(device.copies, 3);
  EXPECT_EQ(landed, 1u);
  while (!drain.done()) ASSERT_TRUE(drain.Next(landed).ok());
  EXPECT_EQ(device.most_pending, 2);
}

TEST_F(DrainTest, AFailureAtAnyCallStaysOne) {
  for (int call = 0; call < 12; ++call) {
    LateDevice device(9);
    device.fails_after = call;
    Drain drain(device, {}, Parts());
    uint64_t landed = 0;
    Outcome outcome;
    for (int i = 0; i < 20 && outcome.ok(); ++i) outcome = drain.Next(landed);
    EXPECT_FALSE(outcome.ok()) << call;
    EXPECT_EQ(drain.Next(landed).error, outcome.error);
    EXPECT_EQ(std::memcmp(to_.data(), from_.data(), landed), 0) << "what landed is right";
  }
}

TEST_F(DrainTest, OneThatWasGivenUpDoesNotDisturbTheNext) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    LateDevice device(seed);
    std::vector<unsigned char> nowhere(from_.size());
    {
      Drain given_up(device, {}, {{from_.data() + 5, nowhere.data(), from_.size() - 5}});
      uint64_t landed = 0;
      ASSERT_TRUE(given_up.Next(landed).ok());
    }
    Drain drain(device, {}, Parts());
    for (uint64_t landed = 0; !drain.done();) ASSERT_TRUE(drain.Next(landed).ok());
    EXPECT_TRUE(to_ == from_);
  }
}

TEST(Job, SaysWhatWentWrong) {
  LateDevice device(1);
  Job job(device);
  uint64_t landed = 0;
  EXPECT_EQ(job.Find().error, "the job was not packed");
  EXPECT_EQ(job.Land(nullptr, {}, landed).error, "the job was not packed");
  EXPECT_EQ(job.Pack({}, 0, nullptr).error, "nothing is packed here");
}

}  // namespace
}  // namespace lorry::gpu
