// A door with quick limits before a scripted engine, on the table "policy serves 12, 11 is loaded".
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>

#include "tests/unit/engine_proxy/door/harness.h"
#include "tests/unit/engine_proxy/door/tables.h"

namespace lorry::door::testing {

inline std::string Post(std::string_view path, std::string_view body,
                        std::string_view fields = "") {
  return "POST " + std::string(path) +
         " HTTP/1.1\r\nHost: door\r\nContent-Type: application/json\r\nContent-Length: " +
         std::to_string(body.size()) + "\r\n" + std::string(fields) + "\r\n" + std::string(body);
}
inline std::string Get(std::string_view path, std::string_view fields = "") {
  return "GET " + std::string(path) + " HTTP/1.1\r\nHost: door\r\n" + std::string(fields) + "\r\n";
}

inline TableMaker PolicyTable(fleet::EngineKind kind = fleet::EngineKind::kSglang) {
  TableMaker maker(kind);
  maker.Loaded("policy", 11, 1).Loaded("policy", 12).Row("policy", fleet::RowMode::kOpen, 12);
  return maker;
}

class DoorTest : public ::testing::Test {
 protected:
  void StartBefore(uint16_t engine_port, fleet::EngineKind kind = fleet::EngineKind::kSglang) {
    options_.engine_port = engine_port;
    options_.threads = 2;
    options_.limits.sweep_ms = 5;
    door_ = std::make_unique<Door>(options_);
    ASSERT_TRUE(door_->Start().ok());
    door_->SetEngineFacts({.base_models = {"base"}});
    door_->SetTable(PolicyTable(kind).Make());
  }
  void StartBefore(ScriptedEngine::Script script,
                   fleet::EngineKind kind = fleet::EngineKind::kSglang) {
    engine_ = std::make_unique<ScriptedEngine>(std::move(script));
    StartBefore(engine_->port(), kind);
  }
  Wire Connect() { return Wire::Connect(door_->port()); }
  Message Ask(std::string_view request) {
    Wire wire = Connect();
    wire.Send(request);
    return ReadMessage(wire);
  }
  uint32_t InFlight(uint64_t version) {
    const Counts counts = door_->Snapshot();
    const auto it = counts.in_flight.find(NameOf("policy", version));
    return it == counts.in_flight.end() ? 0 : it->second;
  }
  bool BecomesQuiet() {
    return Eventually([this] { return door_->Snapshot().live == 0; });
  }
  // A request is noted behind its end, and others beside it may be noted later.
  bool IsNoted(std::string_view reason) {
    return Eventually([&] {
      const auto recent = door_->Recent(9);
      return std::any_of(recent.begin(), recent.end(),
                         [&](const auto& record) { return record.reason == reason; });
    });
  }

  DoorOptions options_;
  std::unique_ptr<ScriptedEngine> engine_;
  std::unique_ptr<Door> door_;  // goes first
};

}  // namespace lorry::door::testing
