// Every verb explains itself.
#include "clients/cli/help.h"

#include <gmock/gmock.h>

#include <set>

#include "absl/strings/str_split.h"
#include "clients/cli/output.h"
#include "clients/cli/verbs.h"

namespace lorry::cli {
namespace {

using ::testing::HasSubstr;

TEST(Help, EveryVerbHasASummaryAndAFunction) {
  std::set<std::string> names;
  for (const Verb& verb : AllVerbs()) {
    EXPECT_TRUE(names.insert(verb.name).second) << verb.name;
    EXPECT_FALSE(verb.summary.empty()) << verb.name;
    EXPECT_FALSE(verb.summary.ends_with(".")) << verb.name;
    EXPECT_TRUE(verb.run) << verb.name;
    for (const Option& option : verb.options) {
      EXPECT_FALSE(option.help.empty()) << option.name;
      // `lorry adopt --newest` once wanted a value that nobody could guess.
      EXPECT_EQ(option.value.empty(), option.kind == Kind::kSwitch) << option.name;
    }
  }
}

TEST(Help, NoOptionHidesAGlobalOne) {
  for (const Verb& verb : AllVerbs()) {
    for (const Option& own : verb.options) {
      for (const Option& global : GlobalOptions()) EXPECT_NE(own.name, global.name) << verb.name;
    }
  }
}

TEST(Help, EveryExampleParses) {
  for (const Verb& verb : AllVerbs()) {
    for (const std::string& example : verb.examples) {
      std::vector<std::string> words = absl::StrSplit(example, ' ');
      words.erase(words.begin());
      const auto parsed = Parse(AllVerbs(), words);
      EXPECT_TRUE(parsed.ok()) << example << ": " << parsed.status();
    }
  }
}

TEST(Help, LinesFitATerminal) {
  for (const Verb& verb : AllVerbs()) {
    for (const std::string& line : std::vector<std::string>(absl::StrSplit(HelpFor(verb), '\n'))) {
      EXPECT_LE(Width(line), 110u) << line;
    }
  }
}

TEST(Help, NamesArgumentsOptionsAndStatuses) {
  EXPECT_THAT(Overview(AllVerbs()), HasSubstr("publish"));
  EXPECT_THAT(Overview(AllVerbs()), HasSubstr("Exit status"));
  EXPECT_THAT(Markdown(AllVerbs()), HasSubstr("lorry publish DIR --adapter NAME [options]"));
  EXPECT_THAT(Markdown(AllVerbs()), HasSubstr("| 3 | a service does not answer |"));
}

}  // namespace
}  // namespace lorry::cli
