// A door whose policy does not let the requests of `latest` finish when their row flips, on versions
// 11, 12 and 13 of "policy".
#pragma once

#include <string>

#include "tests/unit/engine_proxy/door/door_fixture.h"

namespace lorry::door::testing {

// What a body says behind `key`, up to `end`.
inline std::string After(const std::string& body, const std::string& key, char end = '"') {
  const size_t at = body.find(key);
  if (at == std::string::npos) return "";
  return body.substr(at + key.size(), body.find(end, at + key.size()) - at - key.size());
}

class FlipTest : public DoorTest {
 protected:
  explicit FlipTest(fleet::InFlightMode rule) : rule_(rule) {}
  // The scripts use what the tests own: a test whose script uses its variables ends them itself.
  void Stop() {
    door_.reset();
    engine_.reset();
  }
  void TearDown() override { Stop(); }

  // The row stands on `version`.
  proxy::DoorTable On(uint64_t version) const {
    TableMaker maker(kind_);
    for (const uint64_t loaded : {11, 12, 13}) maker.Loaded("policy", loaded);
    maker.Row("policy", fleet::RowMode::kOpen, version).Alias("policy", "eval", 11);
    maker.raw().rules[0].in_flight = rule_;
    return maker.Make();
  }
  // On 11.
  void StartOn(ScriptedEngine::Script script, EngineFacts facts) {
    StartBefore(std::move(script), kind_);
    facts.base_models = {"base"};
    door_->SetEngineFacts(std::move(facts));
    door_->SetTable(On(11));
  }

  // Until each of the door's threads has done what it was given before.
  void WaitForThreads() {
    for (uint32_t i = 0; i < options_.threads; ++i) {
      EXPECT_EQ(Ask(Post("/load_lora_adapter", "{}")).status(), 403);
    }
  }

  fleet::EngineKind kind_ = fleet::EngineKind::kSglang;
  fleet::InFlightMode rule_;
};

}  // namespace lorry::door::testing
