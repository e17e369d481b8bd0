#include "lib/base/utf8.h"

#include <gtest/gtest.h>

namespace lorry {
namespace {

TEST(Utf8, CutsAfterAWholeCharacter) {
  EXPECT_EQ(Utf8("", 4), "");
  EXPECT_EQ(Utf8("abc", 3), "abc");
  EXPECT_EQ(Utf8("abcd", 3), "abc");
  EXPECT_EQ(Utf8("aé", 3), "aé");
  EXPECT_EQ(Utf8("aéb", 2), "a");
  EXPECT_EQ(Utf8("a😀b", 4), "a");
  EXPECT_EQ(Utf8("é", 1), "");
}

TEST(Utf8, ReplacesWhatIsNone) {
  EXPECT_EQ(Utf8("a\xff\"b\\\n", 100), "a\uFFFD\"b\\\n");
  EXPECT_EQ(Utf8("a\xc3", 100), "a\uFFFD") << "half a character";
  EXPECT_EQ(Utf8(std::string("a\0b", 3), 100), std::string("a\0b", 3));
  EXPECT_EQ(Utf8(std::string(9, '\xff'), 7), "\uFFFD\uFFFD");
}

}  // namespace
}  // namespace lorry
