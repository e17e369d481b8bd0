// The router and the names that frameworks give to adapters, and their pauses.
#include <optional>
#include <string>

#include "gtest/gtest.h"
#include "services/engine_proxy/door/router.h"
#include "tests/unit/engine_proxy/door/tables.h"

namespace lorry::door {
namespace {

using fleet::NoAdapterMode;
using fleet::RowMode;
using testing::NameOf;
using testing::TableMaker;

// The engine name, or "HELD", or the reason of the refusal.
std::string AskOne(Router& router, Ask ask) {
  const Resolution outcome = router.Resolve(std::move(ask));
  if (const auto* refused = std::get_if<Refused>(&outcome)) return refused->reason;
  if (const auto* held = std::get_if<Held>(&outcome)) return "HELD else " + held->too_late.reason;
  return std::get<Admitted>(outcome).resolved[0].name.value;
}

class RouterBindingsTest : public ::testing::Test {
 protected:
  static TableMaker Ordinary() {
    TableMaker maker;
    maker.Loaded("policy", 11, 1).Loaded("policy", 12).Row("policy", RowMode::kOpen, 12);
    return maker;
  }
  std::string Named(const std::string& name) { return AskOne(router_, {.adapters = {name}}); }
  Router router_{100, nullptr};
};

TEST_F(RouterBindingsTest, ABindingBeatsASelectorOfTheSameSpelling) {
  router_.SetTable(Ordinary()
                       .Loaded("lorry.binding", 0, 0, 1)
                       .Binding("policy", "lorry.binding", 0)
                       .Binding("lora_v7", "lorry.binding", 9)
                       .Make());
  const Resolution outcome = router_.Resolve({{"policy"}, std::nullopt});
  const auto* admitted = std::get_if<Admitted>(&outcome);
  ASSERT_NE(admitted, nullptr);
  const Resolved& resolved = admitted->resolved.front();
  EXPECT_EQ(resolved.name, NameOf("lorry.binding", 0));
  EXPECT_EQ(resolved.key.adapter.value, "policy");
  EXPECT_EQ(resolved.digest.value, "sha256-xxh3:" + resolved.name.value);
  EXPECT_TRUE(resolved.is_binding);
  EXPECT_EQ(router_.Snapshot().in_flight.at(resolved.name), 1u);

  const Resolution away = router_.Resolve({{"lora_v7"}, std::nullopt});
  const auto* held = std::get_if<Held>(&away);
  ASSERT_NE(held, nullptr) << "it waits for its adapter";
  EXPECT_TRUE(held->demands.contains(AdapterName(NameOf("lorry.binding", 9).value)));

  const Resolution unknown = router_.Resolve({{"lora_v8"}, std::nullopt});
  ASSERT_NE(std::get_if<Refused>(&unknown), nullptr);
  EXPECT_NE(std::get<Refused>(unknown).message.find("lora_v7"), std::string::npos);
  const Resolution numbered = router_.Resolve({{"policy"}, MinVersion{3}});
  ASSERT_NE(std::get_if<Refused>(&numbered), nullptr);
  EXPECT_EQ(std::get<Refused>(numbered).reason, "STALE_VERSION");
}

TEST_F(RouterBindingsTest, NamesThatLookLikeSelectorsMayBeBindings) {
  router_.SetTable(Ordinary()
                       .Loaded("lorry.binding", 1)
                       .Binding("policy@11", "lorry.binding", 1)
                       .Binding("policy:active", "lorry.binding", 1)
                       .Binding("policy:eval@3", "lorry.binding", 1)
                       .Make());
  const std::string bound = NameOf("lorry.binding", 1).value;
  EXPECT_EQ(Named("policy@11"), bound) << "and not version 11";
  EXPECT_EQ(Named("policy@12"), NameOf("policy", 12).value);
  EXPECT_EQ(Named("policy:active"), bound);
  EXPECT_EQ(Named("policy:eval@3"), bound);
}

TEST_F(RouterBindingsTest, ABindingMayHaveTheBaseModelsName) {
  const std::string bound = NameOf("lorry.binding", 1).value;
  TableMaker maker;
  maker.Rules({.adapter = AdapterName("policy"),
               .current_run = RunId(1),
               .no_adapter = NoAdapterMode::kLatest});
  maker.Loaded("policy", 12).Row("policy", RowMode::kOpen, 12).Loaded("lorry.binding", 1);
  const auto names_base = [&] {
    return AskOne(router_, {.adapters = {""}, .base_model = "org/Base-7B"});
  };
  router_.SetTable(maker.Make());
  EXPECT_EQ(names_base(), NameOf("policy", 12).value) << "as policy says";
  router_.SetTable(maker.Binding("org/Base-7B", "lorry.binding", 1).Make());
  EXPECT_EQ(names_base(), bound);
  EXPECT_EQ(Named("policy"), NameOf("policy", 12).value);
  EXPECT_EQ(Named("@base"), "NO_ADAPTER");
}

TEST_F(RouterBindingsTest, UnderAFrameworksPauseNamesAreReadOnceItIsOver) {
  TableMaker maker = Ordinary();
  maker.Loaded("lorry.binding", 1).Loaded("lorry.binding", 2).Binding("lora_1", "lorry.binding", 1);
  maker.raw().framework_pause_ms = 900'000;
  router_.SetTable(maker.Make());
  for (const std::string name : {"lora_1", "policy", "policy@11", "lora_2"})
    EXPECT_EQ(Named(name), "HELD else HELD_TOO_LONG") << name;
  const Resolution outcome = router_.Resolve({.adapters = {"lora_1"}});
  EXPECT_EQ(std::get<Held>(outcome).limit_ms, 900'000);
  EXPECT_TRUE(std::get<Held>(outcome).demands.empty());
  maker.raw().asleep = true;
  router_.SetTable(maker.Make());
  EXPECT_EQ(Named("lora_1"), "HELD else HELD_TOO_LONG") << "its memory is taken back before that";
  maker.raw().asleep = false;
  router_.SetTable(maker.Make());
  const Resolution tokenize = router_.Resolve({.adapters = {"policy"}, .needs_no_token = true});
  EXPECT_TRUE(std::holds_alternative<Admitted>(tokenize));
  maker.raw().framework_pause_ms = 0;
  maker.raw().bindings.front().target = NameOf("lorry.binding", 2);
  router_.SetTable(maker.Make());
  EXPECT_EQ(Named("lora_1"), NameOf("lorry.binding", 2).value);
  EXPECT_EQ(Named("lora_2"), "UNKNOWN_ADAPTER");
}

}  // namespace
}  // namespace lorry::door
