#include "services/engine_proxy/machine/door_table.h"

#include "gtest/gtest.h"

namespace lorry::proxy {
namespace {

TEST(DoorTable, FindsWhatItHasAndNothingElse) {
  const AdapterName math("math");
  DoorTable table;
  table.rows = {{AdapterName("code"), fleet::RowMode::kClosed, {}, {}, true},
                {math, fleet::RowMode::kOpen, Epoch(3), EngineName("m-2"), false}};
  table.routes = {{EngineName("m-1"), {math, RunId(1), VersionNumber(1)}, {}, {}, 1},
                  {EngineName("m-2"), {math, RunId(2), VersionNumber(1)}, {}, {}, 0}};
  table.aliases = {{math, AliasName("eval"), EngineName("m-1")}};
  table.rules = {{math, RunId(2)}};
  EXPECT_EQ(table.FindRow(math)->epoch, Epoch(3));
  EXPECT_EQ(table.FindRow(AdapterName("other")), nullptr);
  EXPECT_EQ(table.FindRoute(EngineName("m-1"))->lag, 1u);
  EXPECT_EQ(table.FindAlias(math, AliasName("eval"))->target, EngineName("m-1"));
  EXPECT_EQ(table.FindAlias(math, AliasName("best")), nullptr);
  // An explicit number is of the current run.
  EXPECT_EQ(table.FindVersion(math, VersionNumber(1))->name, EngineName("m-2"));
  EXPECT_EQ(table.FindVersion(math, VersionNumber(2)), nullptr);
}

}  // namespace
}  // namespace lorry::proxy
