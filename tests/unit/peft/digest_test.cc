#include "lib/peft/digest.h"

#include <gtest/gtest.h>

#include "tests/unit/peft/test_image.h"

namespace lorry::peft {
namespace {

// Byte i is (i * 31 + (i >> 8)) % 251, as make_goldens.py makes it.
std::string PatternBytes(uint64_t length) {
  std::string bytes(length, '\0');
  for (uint64_t i = 0; i < length; ++i) bytes[i] = static_cast<char>((i * 31 + (i >> 8)) % 251);
  return bytes;
}

std::vector<Leaf> LeavesOf(std::string_view image, size_t piece_bytes) {
  LeafHasher hasher;
  for (size_t at = 0; at < image.size(); at += piece_bytes)
    hasher.Add(Bytes(image.substr(at, piece_bytes)));
  EXPECT_EQ(hasher.image_bytes(), image.size());
  return hasher.Finish();
}

TEST(Digest, MatchesTheGoldenVectors) {
  for (const auto& golden : ReadGolden("digests.json")) {
    const uint64_t length = golden["image_bytes"];
    SCOPED_TRACE(length);
    const auto leaves = LeavesOf(PatternBytes(length), length + 1);
    std::vector<std::string> hex;
    for (const Leaf& leaf : leaves) hex.push_back(ToHex(leaf.bytes));
    EXPECT_EQ(hex, golden["leaves"].get<std::vector<std::string>>());
    const auto digest = DigestOf(length, leaves, golden["canonical"].get<std::string>());
    ASSERT_THAT(digest, IsOk());
    EXPECT_EQ(digest->value, golden["digest"].get<std::string>());
  }
}

TEST(LeafHasher, ChunkingNeverMatters) {
  const std::string image = PatternBytes(3 * kLeafBytes + 777);
  const auto whole = LeavesOf(image, image.size());
  ASSERT_EQ(whole.size(), LeafCount(image.size()));
  for (const size_t piece :
       {size_t{4093}, size_t{65536}, size_t{kLeafBytes - 1}, size_t{kLeafBytes},
        size_t{kLeafBytes + 1}, size_t{2 * kLeafBytes + 5}}) {
    EXPECT_EQ(LeavesOf(image, piece), whole) << piece;
  }
  for (size_t i = 0; i < whole.size(); ++i) {
    EXPECT_EQ(LeafHash(Bytes(std::string_view(image).substr(i * kLeafBytes, kLeafBytes))),
              whole[i]);
  }
}

TEST(Digest, ChangesWithEveryPartOfIt) {
  const std::string image = PatternBytes(kLeafBytes + 10);
  auto leaves = LeavesOf(image, image.size());
  const auto digest = DigestOf(image.size(), leaves, "{}");
  EXPECT_NE(*digest, *DigestOf(image.size() + 1, leaves, "{}"));
  EXPECT_NE(*digest, *DigestOf(image.size(), leaves, "{ }"));
  leaves[1].bytes[15] ^= 1;
  EXPECT_NE(*digest, *DigestOf(image.size(), leaves, "{}"));
}

TEST(Digest, LeavesMustBeComplete) {
  EXPECT_FALSE(DigestOf(kLeafBytes + 1, std::vector<Leaf>(1), "{}").ok());
  EXPECT_FALSE(DigestOf(kLeafBytes, std::vector<Leaf>(2), "{}").ok());
  EXPECT_TRUE(DigestOf(0, {}, "{}").ok());
}

}  // namespace
}  // namespace lorry::peft
