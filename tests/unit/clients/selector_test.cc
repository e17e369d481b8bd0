// How versions are written.
#include "clients/cli/selector.h"

#include <gtest/gtest.h>

namespace lorry::cli {
namespace {

using Kind = VersionWord::Kind;

TEST(VersionWord, IsANumberWithOrWithoutARun) {
  EXPECT_EQ(*ParseVersionWord("12"), (VersionWord{Kind::kNumber, 0, 12, ""}));
  EXPECT_EQ(*ParseVersionWord("v12"), (VersionWord{Kind::kNumber, 0, 12, ""}));
  EXPECT_EQ(*ParseVersionWord("r2.12"), (VersionWord{Kind::kNumber, 2, 12, ""}));
}

TEST(VersionWord, IsAWordOrAnAlias) {
  EXPECT_EQ(ParseVersionWord("newest")->kind, Kind::kNewest);
  EXPECT_EQ(ParseVersionWord("latest")->kind, Kind::kLatest);
  EXPECT_EQ(*ParseVersionWord("best"), (VersionWord{Kind::kAlias, 0, 0, "best"}));
  for (const char* wrong : {"", "-1", "Best", "a/b"}) {
    EXPECT_FALSE(ParseVersionWord(wrong).ok()) << wrong;
  }
}

TEST(Selector, NamesAnAdapterAndPerhapsAVersion) {
  EXPECT_EQ(*ParseSelector("policy"), (Selector{"policy", std::nullopt}));
  EXPECT_EQ(*ParseSelector("policy@12"),
            (Selector{"policy", VersionWord{Kind::kNumber, 0, 12, ""}}));
  EXPECT_EQ(*ParseSelector("policy@eval"),
            (Selector{"policy", VersionWord{Kind::kAlias, 0, 0, "eval"}}));
  EXPECT_EQ(*ParseSelector("policy-v12"),
            (Selector{"policy", VersionWord{Kind::kNumber, 0, 12, ""}}));
  EXPECT_EQ(*ParseSelector("qwen2.5"), (Selector{"qwen2.5", std::nullopt}));
  for (const char* wrong : {"", "@12", "Policy", "policy@"}) {
    EXPECT_FALSE(ParseSelector(wrong).ok()) << wrong;
  }
}

TEST(VersionOfDirectory, ReadsTheNumberAtTheEnd) {
  EXPECT_EQ(VersionOfDirectory("policy-v12"), (NamedVersion{"policy", 12}));
  EXPECT_EQ(VersionOfDirectory("v3"), (NamedVersion{"", 3}));
  EXPECT_EQ(VersionOfDirectory("checkpoint-400"), (NamedVersion{"", 400}));
  EXPECT_EQ(VersionOfDirectory("7"), (NamedVersion{"", 7}));
  for (const char* none : {"final", "qwen2.5", "-v3", "policy-v", ""}) {
    EXPECT_EQ(VersionOfDirectory(none), std::nullopt) << none;
  }
}

}  // namespace
}  // namespace lorry::cli
