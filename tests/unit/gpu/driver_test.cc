// cuda_device.cc, all of its calls to the driver, where there is no GPU: the driver is fake_driver.cc.
#include <gtest/gtest.h>

#include "clients/gpu/packer.h"
#include "tests/unit/gpu/adapters.h"
#include "tests/unit/gpu/cpu_device.h"
#include "tests/unit/gpu/fake_driver.h"

namespace lorry::gpu {
namespace {

constexpr Format kF32 = Format::kF32, kBf16 = Format::kBf16;

// Several leaves, and more bytes than both pinned buffers hold.
Adapter Large() {
  Prng prng(4);
  Adapter adapter;
  adapter.image_bytes = 40'008;
  AddTensor(adapter, prng, kF32, kF32, 30, 70'000);
  AddTensor(adapter, prng, kF32, kBf16, 20, 10'000, 1, 3);
  return adapter;
}

Adapter Small() {
  Prng prng(5);
  Adapter adapter;
  adapter.image_bytes = 8 + kLeafBytes - kTileBytes;  // so that a leaf is hashed
  AddTensor(adapter, prng, kF32, kBf16, 7, 3000);
  return adapter;
}

struct Result {
  std::vector<unsigned char> image;
  std::vector<std::optional<Hash>> leaves;
  std::string error;
};

Result Drained(Job& job, const Adapter& adapter) {
  Result result;
  result.error = job.Find().error;
  result.image.resize(adapter.image_bytes);
  std::vector<Job::Span> spans;
  for (const Source& source : adapter.sources) spans.push_back({source.begin, source.bytes()});
  for (uint64_t landed = 0, before = 1; result.error.empty() && landed != before;) {
    before = landed;
    result.error = job.Land(result.image.data(), spans, landed).error;
  }
  if (result.error.empty()) result.leaves = job.leaves();
  return result;
}

Result Packed(Device& device, const Adapter& adapter,
              CUstream stream = fake_driver::TrainersStream()) {
  Job job(device);
  Outcome packed = job.Pack(adapter.sources, adapter.image_bytes, stream);
  return packed.ok() ? Drained(job, adapter)
                     : Result{.image = {}, .leaves = {}, .error = packed.error};
}

void ExpectSame(const Result& packed, const Adapter& adapter) {
  CpuDevice cpu;
  const Result expected = Packed(cpu, adapter);
  ASSERT_EQ(packed.error, "");
  EXPECT_TRUE(packed.image == Expected(adapter));
  ASSERT_EQ(packed.leaves.size(), expected.leaves.size());
  EXPECT_TRUE(packed.leaves.at(1).has_value());
  for (size_t i = 0; i < packed.leaves.size(); ++i) {
    ASSERT_EQ(packed.leaves[i].has_value(), expected.leaves[i].has_value()) << i;
    if (!packed.leaves[i].has_value()) continue;
    EXPECT_EQ(std::memcmp(packed.leaves[i]->bytes, expected.leaves[i]->bytes, 16), 0) << i;
  }
}

// Nothing is left when it ends, whatever failed on the way.
class DriverTest : public testing::Test {
 protected:
  void TearDown() override {
    fake_driver::FailAfter(-1);
    fake_driver::Capture(false);
    EXPECT_EQ(fake_driver::Held(), 0);
    EXPECT_EQ(fake_driver::Depth(), 0);
    EXPECT_EQ(fake_driver::Wrong(), 0);
  }

  static std::unique_ptr<Device> Open(int ordinal = 0) {
    std::unique_ptr<Device> device;
    EXPECT_EQ(OpenDevice(ordinal, device).error, "");
    return device;
  }
};

TEST_F(DriverTest, PacksAsTheCpuDoes) {
  const auto device = Open();
  const Adapter adapter = Large();
  for (int round = 0; round < 2; ++round)  // what the round before left is used again
    ExpectSame(Packed(*device, adapter), adapter);
}

TEST_F(DriverTest, PacksOnTheGpuThatHoldsTheAdapter) {
  const auto first = Open(0), second = Open(1);
  const Adapter adapter = Small();
  for (const CUstream stream : {fake_driver::TrainersStream(1), CUstream(nullptr)}) {
    const Result result = Packed(*second, adapter, stream);
    EXPECT_EQ(result.error, "");
    EXPECT_TRUE(result.image == Expected(adapter));
  }
  EXPECT_EQ(Packed(*first, adapter).error, "");
}

TEST_F(DriverTest, NoImageAndNoStreamWaitsForTheStepOfAnother) {
  const auto device = Open();
  const CUstream hangs = fake_driver::TrainersStream(0, 0),
                 goes = fake_driver::TrainersStream(0, 1);
  const Adapter adapter = Small();
  Job late(*device);
  fake_driver::Stop(hangs, true);
  ASSERT_EQ(late.Pack(adapter.sources, adapter.image_bytes, hangs).error, "");
  {
    Job given_up(*device);
    ASSERT_EQ(given_up.Pack(adapter.sources, adapter.image_bytes, hangs).error, "");
  }
  bool finished = true;
  EXPECT_EQ(late.Await(std::chrono::milliseconds(2), finished).error, "");
  EXPECT_FALSE(finished);
  for (int round = 0; round < 2; ++round) {
    const Result result = Packed(*device, adapter, goes);
    EXPECT_EQ(result.error, "");
    EXPECT_TRUE(result.image == Expected(adapter));
    fake_driver::Finish(goes);
    EXPECT_TRUE(fake_driver::IsDone(goes)) << "the other trainer's stream";
  }
  EXPECT_FALSE(fake_driver::IsDone(hangs));
  fake_driver::Stop(hangs, false);
  EXPECT_TRUE(Drained(late, adapter).image == Expected(adapter));
}

TEST_F(DriverTest, ADrainThatIsGivenUpSpoilsNoOther) {
  const auto device = Open();
  const Adapter large = Large(), small = Small();
  std::vector<unsigned char> image(large.image_bytes);
  for (int round = 0; round < 2; ++round) {
    {
      Job job(*device);
      ASSERT_EQ(job.Pack(large.sources, large.image_bytes, nullptr).error, "");
      ASSERT_EQ(job.Find().error, "");
      const Job::Span all = {0, large.image_bytes};
      uint64_t landed = 0;
      ASSERT_EQ(job.Land(image.data(), {&all, 1}, landed).error, "");
    }
    Job other(*device);
    ASSERT_EQ(other.Pack(small.sources, small.image_bytes, nullptr).error, "");
    ExpectSame(Drained(other, small), small);
  }
}

TEST_F(DriverTest, PacksNothingAtAll) {
  const auto device = Open();
  EXPECT_EQ(Packed(*device, {}).error, "");
}

TEST_F(DriverTest, TakesTheWeightsOfTheStepBeforeAndNotOfTheOneAfter) {
  const auto device = Open();
  const CUstream training = fake_driver::TrainersStream();
  Adapter adapter = Small();
  auto& weights = adapter.memory[0];
  for (const bool ahead : {false, true}) {  // the trainer is, as far as it lets him; or late
    Job ones(*device), twos(*device);
    for (const auto& [job, value] : {std::pair(&ones, 1), std::pair(&twos, 2)}) {
      fake_driver::Queue(training, weights.data(), weights.size(), value);
      ASSERT_EQ(job->Pack(adapter.sources, adapter.image_bytes, training).error, "");
      fake_driver::Queue(training, weights.data(), weights.size(), 0xff);
    }
    if (ahead) fake_driver::Finish(training);
    for (const auto& [job, value] : {std::pair(&ones, 1), std::pair(&twos, 2)}) {
      const Result result = Drained(*job, adapter);
      std::fill(weights.begin(), weights.end(), static_cast<unsigned char>(value));
      EXPECT_EQ(result.error, "");
      EXPECT_TRUE(result.image == Expected(adapter)) << value;
    }
    fake_driver::Finish(training);
  }
}

TEST_F(DriverTest, KeepsTheMemoryOfAJobThatNobodyWaitsForUntilItIsPacked) {
  const auto device = Open();
  const Adapter adapter = Small();
  {
    Job job(*device);
    ASSERT_EQ(job.Pack(adapter.sources, adapter.image_bytes, nullptr).error, "");
  }
  EXPECT_EQ(Packed(*device, adapter).error, "");
}

TEST_F(DriverTest, RefusesAStreamThatIsCaptured) {
  const auto device = Open();
  fake_driver::Capture(true);
  EXPECT_EQ(Packed(*device, Small()).error, "the trainer's stream is captured into a graph");
  fake_driver::Capture(false);
  EXPECT_EQ(Packed(*device, Small()).error, "");
}

TEST_F(DriverTest, AFailureIsOfOnePublish) {
  const Adapter adapter = Small();
  const auto device = Open();
  for (int at = 0; at < 12; ++at) {
    fake_driver::FailAfter(at);
    (void)Packed(*device, adapter);
    fake_driver::FailAfter(-1);
    EXPECT_EQ(Packed(*device, adapter).error, "") << at;
    fake_driver::Finish(fake_driver::TrainersStream());
  }
}

TEST_F(DriverTest, AGpuThatFailedForGoodIsGivenBack) {
  for (int at = 0; at < 40; ++at) {
    fake_driver::FailAfter(-1);
    const auto device = Open();
    fake_driver::FailAfter(at, {CUDA_ERROR_LAUNCH_FAILED, true});
    (void)Packed(*device, Small());
    EXPECT_NE(Packed(*device, Small()).error, "") << at;
  }
}

TEST_F(DriverTest, TheKernelsAreBlamedForWhatIsTheirs) {
  std::unique_ptr<Device> device;
  fake_driver::FailAfter(3, {CUDA_ERROR_NO_BINARY_FOR_GPU});
  EXPECT_EQ(OpenDevice(0, device).error.substr(0, 28), "the kernels do not suit this");
  fake_driver::FailAfter(3);
  EXPECT_EQ(OpenDevice(0, device).error, "cannot load the kernels: the fake driver failed");
}

TEST_F(DriverTest, SaysThatThereIsNoSuchGpu) {
  std::unique_ptr<Device> device;
  EXPECT_EQ(OpenDevice(3, device).error.substr(0, 14), "no such device");
  EXPECT_EQ(device, nullptr);
}

TEST_F(DriverTest, WhicheverCallFailsIsToldAndNothingIsLeft) {
  const Adapter adapter = Small();
  int told = 0;
  for (bool failed = true; failed; ++told) {
    ASSERT_LT(told, 200) << "it fails whatever the driver does";
    fake_driver::FailAfter(told);
    {
      std::unique_ptr<Device> device;
      std::string error = OpenDevice(0, device).error;
      ASSERT_EQ(device == nullptr, !error.empty()) << told;
      if (device != nullptr) error = Packed(*device, adapter).error;
      failed = !error.empty();
      if (failed) {
        EXPECT_NE(error.find(": the fake driver failed"), std::string::npos) << error;
      }
      fake_driver::FailAfter(-1);  // closing is not what fails here
      fake_driver::Finish(fake_driver::TrainersStream());
    }
    ASSERT_EQ(fake_driver::Held(), 0) << told;
    ASSERT_EQ(fake_driver::Depth(), 0) << told;
  }
  EXPECT_GT(told, 35);
}

}  // namespace
}  // namespace lorry::gpu
