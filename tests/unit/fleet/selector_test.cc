// How a version is written, and what is said of texts that mean none.
#include "lib/fleet/selector.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "lib/base/error.h"

namespace lorry::fleet {
namespace {

using Kind = Selector::Kind;
using ::testing::HasSubstr;

const AdapterName kPolicy("policy");

Selector Latest(const char* adapter = "policy") { return {.adapter = AdapterName(adapter)}; }
Selector Numbered(uint64_t number) {
  return {.adapter = kPolicy, .kind = Kind::kNumber, .number = VersionNumber(number)};
}
Selector OfRun(uint64_t run, uint64_t number) {
  return {.adapter = kPolicy,
          .kind = Kind::kVersion,
          .run = RunId(run),
          .number = VersionNumber(number)};
}
Selector Aliased(const char* alias) {
  return {.adapter = kPolicy, .kind = Kind::kAlias, .alias = AliasName(alias)};
}

TEST(Selector, HasOneReadingForEverySpelling) {
  const std::vector<std::pair<const char*, Selector>> spellings = {
      {"policy", Latest()},
      {"policy@latest", Latest()},
      {"qwen2.5", Latest("qwen2.5")},
      {"run-v", Latest("run-v")},
      {"policy-v12-0123456789ab", Latest("policy-v12-0123456789ab")},
      {"policy@newest", {.adapter = kPolicy, .kind = Kind::kNewest}},
      {"policy@12", Numbered(12)},
      {"policy@v12", Numbered(12)},
      {"policy-v12", Numbered(12)},
      {"policy@0", Numbered(0)},
      {"policy@18446744073709551615", Numbered(18446744073709551615u)},
      {"policy@r2.12", OfRun(2, 12)},
      {"policy r2.12", OfRun(2, 12)},
      {"policy@eval", Aliased("eval")},
      {"policy@r2", Aliased("r2")},
      {"policy@v2.1", Aliased("v2.1")},
      {"policy@base", {.adapter = kPolicy, .kind = Kind::kBase}},
      {"@base", {.kind = Kind::kBase}},
  };
  for (const auto& [text, meant] : spellings) {
    const auto read = ParseSelector(text);
    ASSERT_TRUE(read.ok()) << text << ": " << read.status();
    EXPECT_EQ(*read, meant) << text;
    EXPECT_EQ(*ParseSelector(ToString(*read)), meant) << text << " → " << ToString(*read);
  }
}

TEST(Selector, IsWrittenInItsShortestForm) {
  EXPECT_EQ(ToString(Latest()), "policy");
  EXPECT_EQ(ToString(Numbered(12)), "policy@12");
  EXPECT_EQ(ToString(OfRun(2, 12)), "policy@r2.12");
  EXPECT_EQ(ToString(Aliased("eval")), "policy@eval");
  EXPECT_EQ(ToString(Selector{.kind = Kind::kBase}), "@base");
}

TEST(Selector, WhatLogsPrintCanBeTyped) {
  const VersionKey key{kPolicy, RunId(2), VersionNumber(81)};
  EXPECT_EQ(*ParseSelector(ToString(key)), OfRun(2, 81));
}

TEST(Selector, IsRefusedWithWhatToWriteInstead) {
  const std::vector<std::pair<std::string, const char*>> refusals = {
      {"", "write policy, policy@12 or policy@eval"},
      {"Policy", "for instance \"math-policy\""},
      {"@12", "for instance \"math-policy\""},
      {"-v12", "for instance \"math-policy\""},
      {"policy-v3@12", "leave out the -v<digits>"},
      {"policy@", "write 12, r2.12, newest, latest or an alias"},
      {"policy@Eval", "policy: \"Eval\" is no version; write 12"},
      {"policy@../x", "is no version; write 12"},
      {"policy@-1", "is no version; write 12"},
      {"policy@ 12", "is no version; write 12"},
      {"policy@sha256:00ff", "is no version; write 12"},
      {"policy@12@eval", "is no version; write 12"},
      {"policy eval", "write policy, policy@12, policy@r2.12 or policy@eval"},
      {"policy 12", "write policy, policy@12, policy@r2.12 or policy@eval"},
      {"policy@r0.12", "count from 1; write r1.12"},
      {"policy@18446744073709551616", "too large; numbers end at"},
      {"policy-v18446744073709551616", "too large; numbers end at"},
      {"policy@r18446744073709551616.1", "too large; numbers end at"},
      {std::string(4096, 'x'), "must match"},
  };
  for (const auto& [text, remedy] : refusals) {
    const absl::Status refused = ParseSelector(text).status();
    EXPECT_EQ(ReasonOf(refused), "NAME_INVALID") << text;
    EXPECT_THAT(std::string(refused.message()), HasSubstr(remedy)) << text;
    EXPECT_LT(refused.message().size(), 250u) << "a long text is not repeated whole";
  }
}

TEST(Selector, OfAVersionAloneHasNoAdapter) {
  EXPECT_EQ(*ParseVersion("12"), (Selector{.kind = Kind::kNumber, .number = VersionNumber(12)}));
  EXPECT_EQ(ParseVersion("newest")->kind, Kind::kNewest);
  EXPECT_EQ(ParseVersion("best")->alias, AliasName("best"));
  EXPECT_THAT(std::string(ParseVersion("base").status().message()), HasSubstr("no version"));
}

TEST(CheckAliasName, KeepsAliasesFromLookingLikeAnythingElse) {
  for (const char* good : {"eval", "best", "v2.1", "r2", "2024-best"}) {
    EXPECT_TRUE(CheckAliasName(good).ok()) << good;
  }
  for (const char* bad : {"latest", "newest", "base", "12", "v12", "r2.12", "r0.1", "Best", ""}) {
    EXPECT_EQ(ReasonOf(CheckAliasName(bad)), "NAME_INVALID") << bad;
  }
}

}  // namespace
}  // namespace lorry::fleet
