// What a directory's name says of the version in it.
#include "clients/cli/directory_name.h"

#include <gtest/gtest.h>

namespace lorry::cli {
namespace {

TEST(VersionOfDirectory, ReadsTheNumberAtTheEnd) {
  EXPECT_EQ(VersionOfDirectory("policy-v12"), (NamedVersion{"policy", 12}));
  EXPECT_EQ(VersionOfDirectory("v3"), (NamedVersion{"", 3}));
  EXPECT_EQ(VersionOfDirectory("checkpoint-400"), (NamedVersion{"", 400}));
  EXPECT_EQ(VersionOfDirectory("7"), (NamedVersion{"", 7}));
  for (const char* none : {"final", "qwen2.5", "-v3", "policy-v", "", "v18446744073709551616"}) {
    EXPECT_EQ(VersionOfDirectory(none), std::nullopt) << none;
  }
}

}  // namespace
}  // namespace lorry::cli
