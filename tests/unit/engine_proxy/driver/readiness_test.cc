#include "services/engine_proxy/driver/readiness.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace lorry::proxy {
namespace {

using fleet::MemberHealth;
using fleet::RowMode;

class ReadinessTest : public testing::Test {
 protected:
  ReadinessTest() {
    observed_.health = MemberHealth::kReady;
    table_.awaits_desired = false;
  }
  std::string Why() { return std::string(readiness_.Judge(observed_, table_).message()); }
  DoorRow& Row(const std::string& adapter, RowMode mode) {
    return table_.rows.emplace_back(DoorRow{.adapter = AdapterName(adapter), .mode = mode});
  }

  Readiness readiness_;
  fleet::Observed observed_;
  DoorTable table_;
};

TEST_F(ReadinessTest, WaitsForTheEngineAlways) {
  EXPECT_EQ(Why(), "");
  observed_.health = MemberHealth::kJoining;
  observed_.health_detail = "waits for the engine";
  EXPECT_EQ(Why(), "joining: waits for the engine");
}

// A token that the orchestrator does not know, or a network that lets nothing through.
TEST_F(ReadinessTest, WaitsForTheOrchestratorsFirstWord) {
  table_.awaits_desired = true;
  EXPECT_THAT(Why(), testing::HasSubstr("orchestrator"));
  table_.awaits_desired = false;
  EXPECT_EQ(Why(), "");
  table_.awaits_desired = true;
  EXPECT_EQ(Why(), "") << "whoever served once serves on without it";
}

TEST_F(ReadinessTest, WhatTheJournalHoldsIsServedWithoutTheOrchestrator) {
  table_.awaits_desired = true;
  Row("policy", RowMode::kClosed).catching_up = true;
  EXPECT_THAT(Why(), testing::HasSubstr("orchestrator"));
  table_.rows.clear();
  Row("policy", RowMode::kOpen);
  EXPECT_EQ(Why(), "");
}

TEST_F(ReadinessTest, WaitsForWhatItOwes) {
  Row("policy", RowMode::kOpen);
  Row("math", RowMode::kClosed).catching_up = true;
  EXPECT_THAT(Why(), testing::HasSubstr("math"));
  table_.rows[1].catching_up = false;
  EXPECT_EQ(Why(), "") << "nothing is decided for it";
  table_.rows[1].catching_up = true;
  EXPECT_EQ(Why(), "") << "a row that closes later is the door's business";
}

TEST_F(ReadinessTest, AVersionThatTheEngineRefusesKeepsNoOtherAway) {
  Row("policy", RowMode::kClosed).catching_up = true;
  table_.rows[0].waits_for = "SHAPES_DIFFER";
  EXPECT_EQ(Why(), "");
}

// Whoever came meanwhile would be refused at the door.
TEST_F(ReadinessTest, AnEngineThatWasRestartedIsReadyOnceItServesAgain) {
  observed_.boot = BootId("first");
  Row("policy", RowMode::kOpen);
  EXPECT_EQ(Why(), "");
  observed_.health = MemberHealth::kJoining;
  EXPECT_NE(Why(), "");
  observed_.health = MemberHealth::kReady;
  table_.rows[0].mode = RowMode::kClosed;
  table_.rows[0].catching_up = true;
  EXPECT_EQ(Why(), "") << "the same process was only slow to answer";
  observed_.boot = BootId("second");
  EXPECT_THAT(Why(), testing::HasSubstr("policy"));
  table_.rows[0].waits_for = "SHAPES_DIFFER";
  EXPECT_EQ(Why(), "") << "what it refuses is not waited for, as at first";
  table_.rows[0].waits_for = "";
  EXPECT_EQ(Why(), "") << "it was ready in this life";
}

TEST_F(ReadinessTest, AnEngineThatSleepsOwesNothingYet) {
  table_.awaits_desired = true;
  observed_.health = MemberHealth::kAsleep;
  EXPECT_EQ(Why(), "");
  observed_.health = MemberHealth::kReady;
  EXPECT_NE(Why(), "") << "it was not ready for that";
}

}  // namespace
}  // namespace lorry::proxy
