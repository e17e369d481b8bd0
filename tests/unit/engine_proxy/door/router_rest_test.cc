// The router while its engine sleeps, or gets other weights: nothing is admitted.
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

TableMaker Ordinary() {
  TableMaker maker;
  maker.Loaded("policy", 1).Loaded("policy", 12).Row("policy", RowMode::kOpen, 12);
  maker.Alias("policy", "eval", 1);
  maker.Rules({.adapter = AdapterName("policy"),
               .current_run = RunId(1),
               .no_adapter = fleet::NoAdapterMode::kBase});
  return maker;
}

// The engine name, or the reason of the refusal.
std::string AskOne(Router& router, const std::string& reference) {
  const Resolution outcome = router.Resolve({{reference}, std::nullopt});
  if (const auto* refused = std::get_if<Refused>(&outcome))
    return std::to_string(refused->status) + " " + refused->reason;
  return std::get<Admitted>(outcome).resolved[0].name.value;
}

TEST(RouterAtRest, RefusesEverythingWhileTheEngineSleeps) {
  Router router(100, nullptr);
  TableMaker maker = Ordinary();
  maker.raw().asleep = true;
  router.SetTable(maker.Make());
  for (const char* reference : {"policy", "policy@1", "policy@eval", "@base"}) {
    EXPECT_EQ(AskOne(router, reference), "503 ENGINE_ASLEEP") << reference;
  }
  maker.raw().asleep = false;
  maker.raw().updating = true;
  router.SetTable(maker.Make());
  for (const char* reference : {"policy", "policy@1", "policy@eval", "@base"}) {
    EXPECT_EQ(AskOne(router, reference), "503 ENGINE_UPDATING") << reference;
  }
  maker.raw().updating = false;
  router.SetTable(maker.Make());
  EXPECT_EQ(AskOne(router, "policy"), NameOf("policy", 12).value);
}

TEST(RouterAtRest, SaysThatTheLastHasEndedWhileNothingIsAdmitted) {
  for (const bool is_asleep : {true, false}) {
    for (const char* reference : {"policy", "@base"}) {
      int changes = 0;
      Router router(100, [&changes] { ++changes; });
      TableMaker maker = Ordinary();
      router.SetTable(maker.Make());
      auto first = std::make_optional(router.Resolve(Ask{{reference}, std::nullopt}));
      auto second = std::make_optional(router.Resolve(Ask{{reference}, std::nullopt}));
      maker.raw().asleep = is_asleep;
      maker.raw().updating = !is_asleep;
      router.SetTable(maker.Make());
      first.reset();
      EXPECT_EQ(changes, 0) << reference;
      second.reset();
      EXPECT_EQ(changes, 1) << reference << ": whoever drains it waits for that";
    }
  }
}

}  // namespace
}  // namespace lorry::door
