// Tables are aligned, colours appear only where asked for.
#include "clients/cli/output.h"

#include <gmock/gmock.h>

namespace lorry::cli {
namespace {

TEST(Table, AlignsColumnsByWhatIsSeen) {
  Table table({"NAME", "STATE"});
  table.Add({"a", "✓ ready"});
  table.Add({"longer name", {"no", Colour::kBad}});
  EXPECT_EQ(table.Render(false),
            "NAME         STATE\n"
            "a            ✓ ready\n"
            "longer name  no\n");
}

TEST(Table, ColoursDoNotMoveColumns) {
  Table table({"A", "B"});
  table.Add({{"x", Colour::kGood}, "y"});
  EXPECT_EQ(table.Render(true), "\033[2mA\033[0m  \033[2mB\033[0m\n\033[32mx\033[0m  y\n");
}

TEST(Table, EndsLinesWithoutSpaces) {
  Table table({"A", "B", "C"});
  table.Add({"x", "", ""});
  EXPECT_EQ(table.Render(false), "A  B  C\nx\n");
}

TEST(Table, ShowsControlCharactersAndObeysNone) {
  Table table({"ASKED", "STATE"});
  table.Add({"a\x1b[2Jb\nc\x7f", "✓"});
  EXPECT_EQ(table.Render(false),
            "ASKED               STATE\n"
            "a\\x1b[2Jb\\x0ac\\x7f  ✓\n");
}

// U+009B begins an escape as ESC [ does. What only looks like one, such as é, stays.
TEST(Visible, ShowsTheControlsThatTakeTwoBytes) {
  EXPECT_EQ(Visible("a\xc2\x9b"
                    "2Jb\xc2\x80",
                    "\n"),
            "a\\u009b2Jb\\u0080");
  EXPECT_EQ(Visible("\xc2\xa0\xc3\x9b\xc2"), "\xc2\xa0\xc3\x9b\xc2");
}

TEST(Visible, KeepsWhatItIsTold) { EXPECT_EQ(Visible("a\nb\rc", "\n"), "a\nb\\x0dc"); }

TEST(Words, SayAmountsShortly) {
  EXPECT_EQ(Bytes(0), "0 B");
  EXPECT_EQ(Bytes(1023), "1023 B");
  EXPECT_EQ(Bytes(55'784'243), "53.2 MiB");
  EXPECT_EQ(Milliseconds(850), "850 ms");
  EXPECT_EQ(Milliseconds(2'440), "2.4 s");
  EXPECT_EQ(Age(-5), "0 s");
  EXPECT_EQ(Age(4'000), "4 s");
  EXPECT_EQ(Age(12 * 60'000), "12 min");
  EXPECT_EQ(Age(int64_t{9} * 86'400'000), "9 days");
}

TEST(ProgressLine, FillsUp) {
  EXPECT_THAT(ProgressLine("policy v7", 0, 100, 0), ::testing::HasSubstr("░░░"));
  EXPECT_THAT(ProgressLine("policy v7", 50, 100, 1000), ::testing::HasSubstr("50 B of 100 B"));
  EXPECT_THAT(ProgressLine("policy v7", 0, 0, 0), ::testing::HasSubstr("███"));
}

}  // namespace
}  // namespace lorry::cli
