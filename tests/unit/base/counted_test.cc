#include "lib/base/counted.h"

#include <gtest/gtest.h>

namespace lorry {
namespace {

TEST(Counted, OneAloneIsSingular) {
  EXPECT_EQ(Counted(0, "adapter"), "0 adapters");
  EXPECT_EQ(Counted(1, "adapter"), "1 adapter");
  EXPECT_EQ(Counted(21, "adapter"), "21 adapters");
}

TEST(Counted, TakesWhatIsNoPlainS) {
  EXPECT_EQ(Counted(1, "alias", "aliases"), "1 alias");
  EXPECT_EQ(Counted(2, "alias", "aliases"), "2 aliases");
  EXPECT_EQ(Counted(1, "engine is", "engines are"), "1 engine is");
}

}  // namespace
}  // namespace lorry
