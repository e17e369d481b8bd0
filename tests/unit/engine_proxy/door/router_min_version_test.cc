// X-Lorry-Min-Version: where it names a run, and for how long it lets a request wait.
#include <optional>
#include <string>

#include "gtest/gtest.h"
#include "services/engine_proxy/door/router.h"
#include "tests/unit/engine_proxy/door/tables.h"

namespace lorry::door {
namespace {

using fleet::RowMode;
using testing::NameOf;
using testing::TableMaker;

// The engine name, or what is said instead.
std::string Asked(Router& router, const std::string& reference, uint64_t run, uint64_t number) {
  const Resolution outcome = router.Resolve({{reference}, MinVersion{number, RunId(run)}});
  if (const auto* refused = std::get_if<Refused>(&outcome)) return refused->reason;
  if (const auto* held = std::get_if<Held>(&outcome)) return "HELD else " + held->too_late.reason;
  return std::get<Admitted>(outcome).resolved[0].name.value;
}

TEST(RouterMinVersion, OfARunIsNotMetByAnEarlierOne) {
  // A door that has lost its orchestrator may serve what a trainer went back from.
  TableMaker maker;
  maker.Loaded("policy", 100).Loaded("policy", 81, 0, 2).Loaded("policy", 5, 0, 3);
  maker.Row("policy", RowMode::kOpen, 100);
  Router router(100, nullptr);
  router.SetTable(maker.Make());
  EXPECT_EQ(Asked(router, "policy", 2, 81), "HELD else CATCHING_UP");
  EXPECT_EQ(Asked(router, "policy@r1.100", 2, 81), "STALE_VERSION");
  EXPECT_EQ(Asked(router, "policy", 1, 101), "HELD else CATCHING_UP");
  EXPECT_EQ(Asked(router, "policy", 1, 100), NameOf("policy", 100).value);
  EXPECT_EQ(Asked(router, "policy@r2.81", 2, 81), NameOf("policy", 81).value + "-r2");
  EXPECT_EQ(Asked(router, "policy@r2.81", 2, 82), "STALE_VERSION");
}

TEST(RouterMinVersion, OfARunIsMetByAnyVersionOfALaterOne) {
  TableMaker maker;
  maker.Loaded("policy", 5, 0, 3).Row("policy", RowMode::kOpen);
  maker.raw().rows[0].target = EngineName(NameOf("policy", 5).value + "-r3");
  Router router(100, nullptr);
  router.SetTable(maker.Make());
  EXPECT_EQ(Asked(router, "policy", 2, 81), NameOf("policy", 5).value + "-r3");
  EXPECT_EQ(Asked(router, "policy", 3, 6), "HELD else CATCHING_UP");
}

TEST(RouterMinVersion, OfNoRunIsANumberOfWhateverRun) {
  TableMaker maker;
  maker.Loaded("policy", 100).Row("policy", RowMode::kOpen, 100);
  Router router(100, nullptr);
  router.SetTable(maker.Make());
  EXPECT_EQ(Asked(router, "policy", 0, 81), NameOf("policy", 100).value);
  EXPECT_EQ(Asked(router, "policy", 0, 101), "HELD else CATCHING_UP");
}

TEST(RouterMinVersion, WaitsAsLongAsTheDoorMayBeHeldForThatVersion) {
  // With `quiesce` the row changes once requests have ended, and no request that waits for the
  // version is refused before.
  TableMaker maker;
  maker.Loaded("policy", 100).Row("policy", RowMode::kOpen, 100);
  maker.raw().rules[0].hold_limit_ms = 630'000;
  Router router(100, nullptr);
  router.SetTable(maker.Make());
  const Resolution outcome = router.Resolve({{"policy"}, MinVersion{101}});
  ASSERT_TRUE(std::holds_alternative<Held>(outcome));
  EXPECT_EQ(std::get<Held>(outcome).limit_ms, 630'000);
}

}  // namespace
}  // namespace lorry::door
