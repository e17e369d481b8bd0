#include "clients/cli/remedies.h"

#include <gtest/gtest.h>

namespace lorry::cli {
namespace {

TEST(Remedy, IsWhatTheErrorsPageSays) {
  EXPECT_EQ(Remedy("VERSION_CONFLICT"), "Publish the next number");
  EXPECT_EQ(Remedy("NO_SUCH_REASON"), "");
  EXPECT_EQ(Remedy(""), "");
}

TEST(Remedy, IsTheLastColumn) {
  EXPECT_EQ(RemedyIn("| `A_B` | code | from | means | do this |\n", "A_B"), "do this");
  EXPECT_EQ(RemedyIn("| `A_B` | too few |\n", "A_B"), "");
}

}  // namespace
}  // namespace lorry::cli
