// What a command line says, and how a wrong one is answered.
#include <gmock/gmock.h>

#include "absl/strings/str_split.h"
#include "clients/cli/verb.h"
#include "lib/base/error.h"

namespace lorry::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::vector<Verb>& Verbs() {
  static const auto* verbs = new std::vector<Verb>{
      {.name = "send",
       .summary = "Sends",
       .positionals = {{"DIR", "what"}, {"MORE", "what else", true, true}},
       .options = {{.name = "adapter", .value = "NAME", .help = "whose", .required = true},
                   {.name = "count", .value = "N", .kind = Kind::kNumber, .fallback = "5"},
                   {.name = "wait", .value = "stored|serving", .kind = Kind::kChoice},
                   {.name = "set", .value = "F=V", .repeated = true},
                   {.name = "pass", .value = "--NAME=VALUE", .kind = Kind::kFlag, .repeated = true},
                   {.name = "force", .kind = Kind::kSwitch}}},
      {.name = "status", .summary = "Shows"}};
  return *verbs;
}

absl::StatusOr<Parsed> Words(const std::string& line) {
  return Parse(Verbs(), absl::StrSplit(line, ' ', absl::SkipEmpty()));
}

std::string Refusal(const std::string& line) {
  const auto parsed = Words(line);
  EXPECT_FALSE(parsed.ok()) << line;
  EXPECT_EQ(ReasonOf(parsed.status()), "USAGE");
  return std::string(parsed.status().message());
}

TEST(Parse, OptionsStandAnywhereAndInBothSpellings) {
  for (const char* line : {"--json send out --adapter policy --count=7 --force",
                           "send --adapter=policy out --force --count 7 --json"}) {
    const auto parsed = Words(line);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(parsed->verb->name, "send");
    EXPECT_THAT(parsed->arguments.positionals, ElementsAre("out"));
    EXPECT_EQ(parsed->arguments.Text("adapter"), "policy");
    EXPECT_EQ(parsed->arguments.Number("count"), 7u);
    EXPECT_TRUE(parsed->arguments.Has("force"));
    EXPECT_TRUE(parsed->arguments.Has("json"));
  }
}

TEST(Parse, AFlagOfAnotherProgramBeginsWithDashesItself) {
  const auto parsed = Words("send out --adapter=a --pass --engine=x --pass=--force");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_THAT(parsed->arguments.Texts("pass"), ElementsAre("--engine=x", "--force"));
  for (const char* wrong : {"--pass=engine=x", "--pass=--", "--pass=---x", "--pass -x"})
    EXPECT_THAT(Refusal(std::string("send out --adapter=a ") + wrong), HasSubstr("is no flag"));
}

TEST(Parse, AGlobalOptionsValueIsNoVerb) {
  const auto parsed = Words("--store status status");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->arguments.Text("store"), "status");
  EXPECT_EQ(parsed->verb->name, "status");
}

TEST(Parse, WhatIsNotGivenHasItsFallback) {
  const auto parsed = Words("send out --adapter policy");
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed->arguments.Number("count"), 5u);
  EXPECT_FALSE(parsed->arguments.Has("count"));
  EXPECT_EQ(parsed->arguments.At(3), "");
}

TEST(Parse, RepeatedOptionsKeepTheirOrder) {
  const auto parsed = Words("send a b c --adapter x --set p=1 --set q=2=3");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_THAT(parsed->arguments.Texts("set"), ElementsAre("p=1", "q=2=3"));
  EXPECT_THAT(parsed->arguments.positionals, ElementsAre("a", "b", "c"));
}

TEST(Parse, AfterTwoDashesNothingIsAnOption) {
  const auto parsed = Words("send --adapter x -- --odd");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_THAT(parsed->arguments.positionals, ElementsAre("--odd"));
}

TEST(Parse, DashesAloneAreNoOption) {
  EXPECT_TRUE(Words("--").ok());
  EXPECT_THAT(Refusal("---"), HasSubstr("there is no option ---"));
  EXPECT_EQ(Words("-- status")->verb->name, "status");
}

TEST(Parse, TheVerbIsKnownWhateverElseIsWrong) {
  const auto named = [](const std::string& line) -> std::string {
    const Verb* verb = FindVerb(Verbs(), absl::StrSplit(line, ' ', absl::SkipEmpty()));
    return verb != nullptr ? verb->name : "";
  };
  EXPECT_EQ(named("--json send status --no-such"), "send");
  EXPECT_EQ(named("--store status send"), "send") << "the option's value is no verb";
  EXPECT_EQ(named("nothing status"), "");
  EXPECT_EQ(named("--store"), "");
}

TEST(Parse, MisspelledWordsAreAnsweredWithTheNearest) {
  EXPECT_THAT(Refusal("sned out"), HasSubstr("did you mean send?"));
  EXPECT_THAT(Refusal("send out --adaptor x"), HasSubstr("did you mean --adapter?"));
  EXPECT_THAT(Refusal("frobnicate"), Not(HasSubstr("did you mean")));
}

TEST(Parse, WhatIsMissingOrTooMuchIsNamed) {
  EXPECT_THAT(Refusal("send --adapter x"), HasSubstr("needs DIR"));
  EXPECT_THAT(Refusal("send out"), HasSubstr("needs --adapter NAME"));
  EXPECT_THAT(Refusal("status now"), HasSubstr("no use for \"now\""));
  EXPECT_THAT(Refusal("send out --adapter"), HasSubstr("needs a value"));
  EXPECT_THAT(Refusal("send out --adapter --force"), HasSubstr("needs a value"));
  EXPECT_THAT(Refusal("send out --adapter x --adapter y"), HasSubstr("given twice"));
  EXPECT_THAT(Refusal("send out --adapter x --force=1"), HasSubstr("takes no value"));
}

TEST(Parse, ValuesAreCheckedByTheirKind) {
  EXPECT_THAT(Refusal("send out --adapter x --count many"), HasSubstr("no whole number"));
  EXPECT_THAT(Refusal("send out --adapter x --wait forever"), HasSubstr("none of stored|serving"));
  EXPECT_THAT(Refusal("status --timeout soon"), HasSubstr("no duration"));
  EXPECT_THAT(Refusal("status --timeout 9999h"), HasSubstr("a year at most"));
}

TEST(Parse, OnlyFilesMayHaveNamesThatAreNoUtf8) {
  EXPECT_THAT(Refusal("send out --adapter a\xff"), HasSubstr("--adapter is no UTF-8"));
  EXPECT_THAT(Refusal("send out more\xff --adapter a"), HasSubstr("MORE is no UTF-8"));
  EXPECT_TRUE(Words("send out\xff --adapter a --tls-ca ca\xff").ok());
}

TEST(Parse, HelpNeedsNoArguments) {
  const auto parsed = Words("send --help");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_TRUE(parsed->arguments.Has("help"));
  EXPECT_EQ(Words("")->verb, nullptr);
}

TEST(ParseDuration, ReadsUnitsAndRefusesTheRest) {
  EXPECT_EQ(ParseDuration("90"), 90'000);
  EXPECT_EQ(ParseDuration("90s"), 90'000);
  EXPECT_EQ(ParseDuration("1500ms"), 1'500);
  EXPECT_EQ(ParseDuration("5m"), 300'000);
  EXPECT_EQ(ParseDuration("2h"), 7'200'000);
  for (const char* wrong : {"", "s", "-1s", "5 m", "1e3", "99999999999999h"}) {
    EXPECT_EQ(ParseDuration(wrong), std::nullopt) << wrong;
  }
}

}  // namespace
}  // namespace lorry::cli
