#include "lib/transfer/delta.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "lib/base/error.h"
#include "lib/base/prng.h"
#include "lib/transfer/checksum.h"

namespace lorry::transfer {
namespace {

using Bytes = std::vector<std::byte>;

Bytes Random(size_t size, uint64_t seed) {
  Prng random(seed);
  Bytes bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.Next());
  return bytes;
}

// As a small step changes numbers of two bytes: the low ones of some of them.
Bytes AStepLater(Bytes bytes) {
  Prng random(7);
  for (size_t i = 0; i + 1 < bytes.size(); i += 2) {
    if (random.Next() % 2 == 0) bytes[i] ^= static_cast<std::byte>(random.Next() % 4);
  }
  return bytes;
}

TEST(Delta, ComesToTheBytesThatItWasMadeOf) {
  for (const size_t size :
       {size_t{1}, size_t{3}, size_t{4}, size_t{5}, size_t{8'191}, kLeafBytes - 1, kLeafBytes}) {
    const Bytes base = Random(size, 1);
    for (const Bytes& bytes : {base, AStepLater(base), Bytes(size)}) {
      const auto delta = EncodeDelta(base, bytes);
      if (!delta) continue;
      Bytes out(size, std::byte{0xEE});
      ASSERT_TRUE(DecodeDelta(*delta, base, out).ok()) << size;
      ASSERT_TRUE(out == bytes) << size;
    }
  }
}

TEST(Delta, OfASmallStepIsSmall) {
  const Bytes base = Random(kLeafBytes, 1);
  const auto unchanged = EncodeDelta(base, base);
  ASSERT_TRUE(unchanged);
  EXPECT_LT(unchanged->size(), 100u);
  const auto step = EncodeDelta(base, AStepLater(base));
  ASSERT_TRUE(step);
  EXPECT_LT(step->size(), kLeafBytes / 4);
}

// The low bytes of words of two change, and that is seen whether a word is of two or of four.
TEST(Delta, PutsLikeBytesBesideEachOther) {
  Bytes base(kLeafBytes), bytes(kLeafBytes);
  const Bytes noise = Random(kLeafBytes, 3);
  for (size_t i = 0; i < kLeafBytes; i += 2) bytes[i] = noise[i];
  const auto delta = EncodeDelta(base, bytes);
  ASSERT_TRUE(delta);
  EXPECT_LT(delta->size(), kLeafBytes / 2 + 1'000) << "the other half is zeros";
}

TEST(Delta, IsNothingWhereItSavesNothing) {
  EXPECT_FALSE(EncodeDelta(Random(kLeafBytes, 1), Random(kLeafBytes, 2)));
  EXPECT_FALSE(EncodeDelta(Bytes(1), Bytes(1)));
}

TEST(Delta, ThatIsNoneIsRefused) {
  const Bytes base = Random(4'096, 1);
  const std::string good = *EncodeDelta(base, AStepLater(base));
  const std::string longer = *EncodeDelta(Bytes(8'192), Bytes(8'192));
  const std::string shorter = *EncodeDelta(Bytes(512), Bytes(512));
  Bytes out(base.size());
  for (const std::string& bad : {std::string(), std::string("zstd"),
                                 good.substr(0, good.size() - 1), good + "x", longer, shorter}) {
    const absl::Status refused = DecodeDelta(bad, base, out);
    EXPECT_EQ(refused.code(), absl::StatusCode::kDataLoss) << bad.size();
    EXPECT_EQ(ReasonOf(refused), "RANGE_CORRUPT");
  }
  Prng random(5);
  for (int i = 0; i < 20'000; ++i) {
    std::string mutant = good;
    for (int change = 0; change < 3; ++change) {
      mutant[random.Next() % mutant.size()] = static_cast<char>(random.Next());
    }
    (void)DecodeDelta(mutant, base, out);  // writes nowhere else, which AddressSanitizer sees
  }
}

}  // namespace
}  // namespace lorry::transfer
