#include "lib/peft/values.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "lib/base/prng.h"
#include "tests/unit/peft/test_image.h"

namespace lorry::peft {
namespace {

constexpr char kQ[] = "model.layers.0.self_attn.q_proj";

template <typename Bits>
ValueStats ScanBits(Dtype dtype, const std::vector<Bits>& bits) {
  return ScanValues(dtype, std::as_bytes(std::span(bits)));
}

// The exact value of a half, the slow way.
double HalfValue(uint16_t bits) {
  const int exponent = (bits >> 10) & 31, mantissa = bits & 0x3ff;
  return exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(mantissa + 1024, exponent - 25);
}

TEST(ScanValues, EveryHalfIsJudgedRight) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto f16 = ScanBits<uint16_t>(Dtype::kF16, {static_cast<uint16_t>(bits)});
    const auto bf16 = ScanBits<uint16_t>(Dtype::kBf16, {static_cast<uint16_t>(bits)});
    ASSERT_EQ(f16.zero, (bits & 0x7fff) == 0) << bits;
    ASSERT_EQ(bf16.zero, (bits & 0x7fff) == 0) << bits;
    ASSERT_EQ(f16.finite, (bits & 0x7c00) != 0x7c00) << bits;
    ASSERT_EQ(bf16.finite, std::isfinite(std::bit_cast<float>(bits << 16))) << bits;
    if (f16.finite) {
      ASSERT_FLOAT_EQ(f16.sum_squares, std::pow(HalfValue(static_cast<uint16_t>(bits)), 2)) << bits;
    }
  }
}

TEST(ScanValues, OneBadElementIsFoundWhereverItIs) {
  for (const float bad :
       {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
        std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::quiet_NaN()}) {
    for (size_t at = 0; at < 2500; at += 7) {
      std::vector<float> values(2500, 1.0f);
      EXPECT_TRUE(ScanBits(Dtype::kF32, values).finite);
      values[at] = bad;
      ASSERT_FALSE(ScanBits(Dtype::kF32, values).finite) << at;
    }
  }
}

TEST(ScanValues, SumsSquares) {
  EXPECT_DOUBLE_EQ(ScanBits<float>(Dtype::kF32, std::vector<float>(5000, -2.0f)).sum_squares,
                   20000);
  EXPECT_DOUBLE_EQ(
      ScanBits<uint16_t>(Dtype::kBf16, std::vector<uint16_t>(5000, 0xc000)).sum_squares, 20000);
  EXPECT_DOUBLE_EQ(ScanBits<uint16_t>(Dtype::kF16, std::vector<uint16_t>(5000, 0xc000)).sum_squares,
                   20000);
  EXPECT_DOUBLE_EQ(ScanBits<float>(Dtype::kF32, {}).sum_squares, 0);
}

TEST(ScanValues, AFloatIsNotTwoHalves) {
  // The low half alone would be an infinite BF16, and a NaN as F16.
  const auto stats = ScanBits<uint32_t>(Dtype::kF32, {0x3f807f80});
  EXPECT_TRUE(stats.finite);
  EXPECT_NEAR(stats.sum_squares, 1.0078, 1e-3);
}

TEST(ScanValues, MinusZeroIsZeroAndTheSmallestSubnormalIsNot) {
  EXPECT_TRUE(ScanBits<float>(Dtype::kF32, {0.0f, -0.0f}).zero);
  EXPECT_FALSE(ScanBits<float>(Dtype::kF32, {0.0f, std::numeric_limits<float>::denorm_min()}).zero);
  EXPECT_TRUE(ScanBits<uint16_t>(Dtype::kBf16, std::vector<uint16_t>(3000, 0x8000)).zero);
}

// An image with one module, all elements `value`.
struct Sample {
  explicit Sample(float value) : header(TestImage().Module(kQ, 16, 16).Header()) {
    bytes.assign(header.image_bytes, '\x7f');  // the header's own bytes are no values
    for (uint64_t at = header.data_begin; at < header.image_bytes; at += 4) Set(at, value);
  }
  void Set(uint64_t at, float value) { std::memcpy(bytes.data() + at, &value, 4); }

  absl::StatusOr<ValueSummary> Judge(double tensor_norm_max = 0) const {
    const Config config = ParseConfig(R"({"peft_type": "LORA", "r": 8, "lora_alpha": 16})").value();
    ValueScanner scanner(header);
    scanner.Add(Bytes(bytes));
    return JudgeValues(header, ValidateAdapter(header, config).value(), scanner.stats(),
                       tensor_norm_max);
  }

  ImageHeader header;
  std::string bytes;
};

TEST(JudgeValues, NansAreRefusedInTheTensorThatHoldsThem) {
  Sample sample(0.5f);
  EXPECT_THAT(sample.Judge(), IsOk());
  sample.Set(sample.header.image_bytes - 4, std::nanf(""));
  const auto judged = sample.Judge();
  EXPECT_THAT(judged, RefusedAs("TENSOR_NOT_FINITE"));
  EXPECT_THAT(std::string(judged.status().message()), testing::HasSubstr("lora_B"));
}

TEST(JudgeValues, NormsStayWithinThePolicy) {
  const Sample sample(0.5f);  // 128 elements a tensor: norm sqrt(32)
  EXPECT_THAT(sample.Judge(), IsOk()) << "0 is no limit";
  EXPECT_THAT(sample.Judge(5.657), IsOk());
  EXPECT_THAT(sample.Judge(5.656), RefusedAs("NORM_EXCEEDED"));
}

TEST(JudgeValues, ANormAtItsLimitPassesInEitherTensor) {
  Sample sample(0.0f);
  sample.Set(sample.header.data_begin, 3.0f);
  sample.Set(sample.header.image_bytes - 4, 5.0f);
  EXPECT_THAT(sample.Judge(5), IsOk());
  EXPECT_THAT(sample.Judge(4.99), RefusedAs("NORM_EXCEEDED"));
  sample.Set(sample.header.data_begin, 6.0f);
  EXPECT_THAT(sample.Judge(5), RefusedAs("NORM_EXCEEDED"));
}

TEST(JudgeValues, ValuesWhoseSquaresOverflowExceedEveryLimit) {
  const Sample sample(3e38f);
  EXPECT_THAT(sample.Judge(), IsOk());
  EXPECT_THAT(sample.Judge(1e30), RefusedAs("NORM_EXCEEDED"));
}

TEST(JudgeValues, AFreshAdapterHasOnlyZerosInB) {
  Sample sample(0.0f);
  for (const Tensor& tensor : sample.header.tensors) {
    if (tensor.name.find("lora_A") != std::string::npos) sample.Set(tensor.begin, 1.0f);
  }
  ASSERT_THAT(sample.Judge(), IsOk());
  EXPECT_TRUE(sample.Judge()->all_b_zero);
  sample.Set(sample.header.image_bytes - 4, 1e-30f);
  EXPECT_FALSE(sample.Judge()->all_b_zero);
}

TEST(ValueScanner, PiecesOfAnySizeGiveTheSame) {
  TestImage image;
  image.Module("a", 33, 7, 3, Dtype::kF32)
      .Module("b", 5, 9, 1, Dtype::kBf16)
      .Module("c", 77, 50, 5, Dtype::kF16);
  image.Tensor("other", Dtype::kI64, {3}).Tensor("none", Dtype::kF32, {0});
  const ImageHeader header = image.Header();
  std::string bytes(header.image_bytes, '\0');
  Prng prng(1);
  for (char& byte : bytes) byte = static_cast<char>(prng.Below(0x40));  // finite in every dtype
  ValueScanner whole(header);
  whole.Add(Bytes(bytes));
  for (const size_t piece : {1, 2, 3, 5, 64, 1000}) {
    ValueScanner scanner(header);
    for (size_t at = 0; at < bytes.size(); at += piece)
      scanner.Add(Bytes(std::string_view(bytes).substr(at, piece)));
    for (size_t i = 0; i < header.tensors.size(); ++i) {
      EXPECT_EQ(scanner.stats()[i].finite, whole.stats()[i].finite);
      EXPECT_EQ(scanner.stats()[i].zero, whole.stats()[i].zero);
      EXPECT_NEAR(scanner.stats()[i].sum_squares, whole.stats()[i].sum_squares,
                  1e-5 * whole.stats()[i].sum_squares)
          << header.tensors[i].name << " in pieces of " << piece;
    }
  }
}

}  // namespace
}  // namespace lorry::peft
