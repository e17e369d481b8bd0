// The kernels, all of their blocks and threads, on the CPU.
#include <gtest/gtest.h>
#include <xxhash.h>

#include "clients/gpu/packer.h"
#include "lib/peft/values.h"
#include "tests/unit/gpu/adapters.h"
#include "tests/unit/gpu/cpu_device.h"

namespace lorry::gpu {
namespace {

constexpr Format kF32 = Format::kF32, kF16 = Format::kF16, kBf16 = Format::kBf16;
constexpr struct {
  Format from, to;
} kCasts[] = {{kF32, kF32}, {kF32, kBf16}, {kF16, kF16}, {kF16, kBf16}, {kBf16, kBf16}};

struct Packed {
  std::vector<unsigned char> image;
  std::vector<TensorStats> stats;
  std::vector<std::optional<Hash>> leaves;
};

Packed PackOnCpu(const Adapter& adapter, unsigned stride = 1) {
  CpuDevice device(stride);
  Job job(device);
  Packed packed;
  EXPECT_EQ(job.Pack(adapter.sources, adapter.image_bytes, nullptr).error, "");
  EXPECT_EQ(job.Find().error, "");
  packed.image.resize(adapter.image_bytes);
  std::vector<Job::Span> spans;
  for (const Source& source : adapter.sources) spans.push_back({source.begin, source.bytes()});
  for (uint64_t landed = 0, before = 1; landed != before;) {
    before = landed;
    EXPECT_EQ(job.Land(packed.image.data(), spans, landed).error, "");
  }
  packed.stats = job.stats();
  packed.leaves = job.leaves();
  return packed;
}

// What a sender without a GPU computes of the same image.
std::string LeafOf(const std::vector<unsigned char>& image, uint64_t leaf) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical,
                           XXH3_128bits(&image[leaf * kLeafBytes], LeafLength(leaf, image.size())));
  return {reinterpret_cast<const char*>(canonical.digest), sizeof(canonical.digest)};
}

// Whether tensors cover all of a leaf, and it is long enough.
bool IsHashed(const Adapter& adapter, uint64_t leaf) {
  const uint64_t begin = leaf * kLeafBytes, length = LeafLength(leaf, adapter.image_bytes);
  uint64_t covered = 0;
  for (const Source& source : adapter.sources) {
    const uint64_t first = std::max(begin, source.begin);
    const uint64_t end = std::min(begin + length, source.begin + source.bytes());
    if (first < end) covered += end - first;
  }
  return covered == length && length > 240;
}

void ExpectRight(const Adapter& adapter, const Packed& packed) {
  const std::vector<unsigned char> expected = Expected(adapter);
  ASSERT_TRUE(packed.image == expected);
  for (size_t leaf = 0; leaf < packed.leaves.size(); ++leaf) {
    ASSERT_EQ(packed.leaves[leaf].has_value(), IsHashed(adapter, leaf)) << leaf;
    if (!packed.leaves[leaf].has_value()) continue;
    const auto& bytes = packed.leaves[leaf]->bytes;
    ASSERT_EQ(std::string(bytes, bytes + 16), LeafOf(expected, leaf)) << leaf;
  }
  for (size_t i = 0; i < adapter.sources.size(); ++i) {
    const Source& source = adapter.sources[i];
    constexpr peft::Dtype kDtypes[] = {peft::Dtype::kF32, peft::Dtype::kF16, peft::Dtype::kBf16};
    const peft::ValueStats stats =
        peft::ScanValues(kDtypes[static_cast<size_t>(source.to)],
                         std::as_bytes(std::span(expected).subspan(source.begin, source.bytes())));
    ASSERT_EQ(packed.stats[i].finite, stats.finite) << i;
    ASSERT_EQ(packed.stats[i].zero, stats.zero) << i;
    if (stats.finite) {
      ASSERT_NEAR(packed.stats[i].sum_squares, stats.sum_squares, 1e-5 * stats.sum_squares) << i;
    }
  }
}

// A header's room and tensors of all formats, of sizes that are multiples of nothing.
Adapter Mixed(uint64_t seed) {
  Prng prng(seed);
  Adapter adapter;
  adapter.image_bytes = 8 * prng.Below(20'000);
  for (int i = 0; i < 40; ++i) {
    const auto [from, to] = kCasts[prng.Below(5)];
    const uint64_t rows = prng.Chance(100) ? 0 : 1 + prng.Below(40);
    const uint64_t columns = prng.Chance(100) ? 1 : 1 + prng.Below(prng.Chance(300) ? 9000 : 70);
    AddTensor(adapter, prng, from, to, rows, columns, 1 + prng.Below(5) / 3, prng.Below(5) / 3,
              prng.Below(9));
  }
  return adapter;
}

TEST(Pack, LaysOutCastsHashesAndSums) {
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    SCOPED_TRACE(seed);
    const Adapter adapter = Mixed(seed);
    ExpectRight(adapter, PackOnCpu(adapter));
  }
}

TEST(Pack, DoesNotDependOnTheOrderOfThreads) {
  const Adapter adapter = Mixed(77);
  const Packed forwards = PackOnCpu(adapter);
  for (const unsigned stride : {255u, 37u}) {  // backwards, criss-cross
    const Packed other = PackOnCpu(adapter, stride);
    EXPECT_TRUE(other.image == forwards.image);
    for (size_t i = 0; i < forwards.stats.size(); ++i)
      EXPECT_EQ(other.stats[i].sum_squares, forwards.stats[i].sum_squares);
    for (size_t i = 0; i < forwards.leaves.size(); ++i) {
      ASSERT_EQ(other.leaves[i].has_value(), forwards.leaves[i].has_value());
      if (!other.leaves[i].has_value()) continue;
      EXPECT_EQ(std::memcmp(other.leaves[i]->bytes, forwards.leaves[i]->bytes, 16), 0);
    }
  }
}

TEST(Pack, HashesALastLeafOfAnyLength) {
  Prng prng(3);
  for (const uint64_t tail : {2, 240, 242, 960, 1022, 1024, 1026, 1086, 1088, 2048, 16'384, 16'386,
                              70'000, 1'048'574, 1'048'576}) {
    Adapter adapter;
    adapter.image_bytes = 4096;
    AddTensor(adapter, prng, kBf16, kBf16, 1, (kLeafBytes - 4096 + tail) / 2);
    const Packed packed = PackOnCpu(adapter);
    ExpectRight(adapter, packed);
    EXPECT_EQ(packed.leaves.at(0).has_value(), false) << "the header's";
    EXPECT_EQ(packed.leaves.at(1).has_value(), tail >= kHashedBytesMin) << tail;
  }
}

TEST(Pack, TakesTwentyThousandTensors) {
  Prng prng(20'000);
  Adapter adapter;
  adapter.image_bytes = 2'400'000;
  for (int i = 0; i < 20'000; ++i) {  // as in an image, fp32 first
    const auto [from, to] = kCasts[i < 8000 ? 0 : 1 + i % 4];
    AddTensor(adapter, prng, from, to, 1 + prng.Below(4), prng.Below(40));
  }
  const Packed packed = PackOnCpu(adapter);
  ExpectRight(adapter, packed);
  EXPECT_TRUE(packed.leaves.at(3).has_value());
}

TEST(Pack, PacksNothingAtAll) {
  Adapter adapter;
  EXPECT_TRUE(PackOnCpu(adapter).image.empty());
  adapter.image_bytes = 4096;
  EXPECT_FALSE(PackOnCpu(adapter).leaves.at(0).has_value());
  Prng prng(1);
  AddTensor(adapter, prng, kF32, kF32, 0, 7);
  AddTensor(adapter, prng, kF32, kF32, 7, 0);
  const Packed packed = PackOnCpu(adapter);
  EXPECT_TRUE(packed.stats.at(1).finite && packed.stats.at(1).zero);
}

TEST(Pack, FindsOneBadElementWhereverItIs) {
  for (const auto& [from, to] : kCasts) {
    for (const bool strided : {false, true}) {
      Prng prng(5);
      Adapter adapter;
      adapter.image_bytes = kTileBytes - 400;  // so that it lies in two tiles
      AddTensor(adapter, prng, from, to, 3, 333, strided ? 2 : 1);
      const Source source = adapter.sources[0];
      for (uint64_t at = 0; at < 999; at += 1 + at % 5) {
        auto* element = adapter.memory[0].data() + BytesOf(from) * (at * (strided ? 2 : 1));
        std::vector<unsigned char> kept(element, element + BytesOf(from));
        for (const uint32_t above : {0u, 1u, 0x8000u}) {  // infinity, a NaN, their negatives
          uint32_t bits = NotFinite(from) + (above & 1);
          if (above == 0x8000) bits |= from == kF32 ? 0x80000000 : 0x8000;
          std::memcpy(element, &bits, BytesOf(from));
          CpuDevice device;
          Job job(device);
          ASSERT_EQ(job.Pack({source}, adapter.image_bytes, nullptr).error, "");
          ASSERT_EQ(job.Find().error, "");
          ASSERT_FALSE(job.stats()[0].finite) << at;
        }
        std::memcpy(element, kept.data(), kept.size());
      }
    }
  }
}

TEST(Pack, WhatRoundsToInfinityIsNotFinite) {
  const float large[] = {3.3895e38f, 3.4e38f};  // the largest bf16 and a bit; beyond the middle
  for (const int i : {0, 1}) {
    CpuDevice device;
    Job job(device);
    const Source source = {
        .address = reinterpret_cast<uint64_t>(&large[i]), .columns = 1, .from = kF32, .to = kBf16};
    ASSERT_EQ(job.Pack({source}, 2, nullptr).error, "");
    ASSERT_EQ(job.Find().error, "");
    EXPECT_EQ(job.stats()[0].finite, i == 0);
  }
}

TEST(Cast, RoundsEveryValueToTheNearestAndTiesToEven) {
  for (uint32_t half = 0; half < 0x10000; ++half) {
    const uint32_t bits = Cast<kF16, kBf16>(half);
    if (std::isnan(ValueOf(kF16, half))) {
      ASSERT_TRUE(std::isnan(ValueOf(kBf16, bits))) << half;
    } else {
      ASSERT_EQ(bits, NearestBf16(ValueOf(kF16, half))) << half;
    }
    ASSERT_EQ((Cast<kF16, kF16>(half)), half);
    for (const uint32_t low : {0u, 1u, 0x1234u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      const uint32_t single = half << 16 | low;
      const uint32_t cast = Cast<kF32, kBf16>(single);
      if (std::isnan(ValueOf(kF32, single))) {
        ASSERT_TRUE(std::isnan(ValueOf(kBf16, cast))) << single;
        ASSERT_EQ(cast & 0x8000, half & 0x8000);
      } else {
        ASSERT_EQ(cast, NearestBf16(ValueOf(kF32, single))) << single;
      }
    }
  }
}

TEST(Job, LandsNothingBeyondTheImage) {
  CpuDevice device;
  for (const Job::Span& span : {Job::Span{0, 101}, {101, 0}, {1, ~uint64_t{0}}}) {
    Job job(device);
    uint64_t landed = 0;
    ASSERT_EQ(job.Pack({}, 100, nullptr).error, "");
    EXPECT_EQ(job.Land(nullptr, {&span, 1}, landed).error, "a span ends beyond the image");
  }
}

class CountingDevice : public CpuDevice {
 public:
  Outcome Copy(const Packed& of, int buffer, const unsigned char* from, uint64_t bytes) override {
    ++copies;
    return CpuDevice::Copy(of, buffer, from, bytes);
  }
  int copies = 0;
};

TEST(Job, SpansThatTouchAreBroughtDownTogether) {
  Prng prng(5);
  Adapter adapter;
  adapter.image_bytes = 64;
  for (int i = 0; i < 100; ++i) AddTensor(adapter, prng, Format::kF32, Format::kF32, 2, 50);
  const std::vector<unsigned char> expected = Expected(adapter);
  CountingDevice device;
  Job job(device);
  ASSERT_TRUE(job.Pack(adapter.sources, adapter.image_bytes, nullptr).ok());
  ASSERT_TRUE(job.Find().ok());
  std::vector<Job::Span> spans;
  for (const Source& source : adapter.sources) spans.push_back({source.begin, source.bytes()});
  spans.erase(spans.begin() + 50);
  std::vector<unsigned char> image(adapter.image_bytes);
  device.copies = 0;
  for (uint64_t landed = 0, before = 1; landed != before;) {
    before = landed;
    ASSERT_TRUE(job.Land(image.data(), spans, landed).ok());
  }
  EXPECT_EQ(device.copies, 2) << "one before and one after the span that is left out";
  const Source& left_out = adapter.sources[50];
  for (uint64_t at = 64; at < image.size(); ++at) {
    const bool is_left_out = at >= left_out.begin && at < left_out.begin + left_out.bytes();
    ASSERT_EQ(image[at], is_left_out ? 0 : expected[at]) << at;
  }
}

TEST(Plan, RefusesWhatWouldBePackedWrongly) {
  const auto refuses = [](std::vector<Source> sources, uint64_t image_bytes) {
    Plan plan;
    return !MakePlan(sources, image_bytes, plan).ok();
  };
  const Source good = {.address = 64, .rows = 2, .columns = 8, .row_stride = 8, .begin = 8};
  const auto but = [&](auto change) {
    Source source = good;
    change(source);
    return std::vector<Source>{source};
  };
  EXPECT_FALSE(refuses({good}, 72));
  EXPECT_TRUE(refuses({good}, 71)) << "beyond the image";
  EXPECT_TRUE(refuses({good, good}, 200)) << "overlap";
  EXPECT_TRUE(refuses({good}, kImageBytesMax + 1));
  EXPECT_TRUE(refuses(but([](Source& s) { s.rows = s.columns = uint64_t{1} << 32; }), 200));
  EXPECT_TRUE(refuses(but([](Source& s) {
                        s.rows = uint64_t{1} << 62;
                        s.columns = 1;
                      }),
                      200));
  EXPECT_TRUE(refuses(but([](Source& s) { s.begin = ~uint64_t{0} - 3; }), 200));
  EXPECT_TRUE(refuses(but([](Source& s) { s.begin = 10; }), 200)) << "between two floats";
  EXPECT_TRUE(refuses(but([](Source& s) { s.address = 62; }), 200));
  EXPECT_TRUE(refuses(but([](Source& s) { s.address = 0; }), 200));
  EXPECT_TRUE(refuses(but([](Source& s) { s.to = Format::kF16; }), 200));
  EXPECT_TRUE(refuses(but([](Source& s) { s.to = s.from = static_cast<Format>(3); }), 200));
}

}  // namespace
}  // namespace lorry::gpu
