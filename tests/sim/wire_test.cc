// What a simulated network carries is what the codec makes of it, whatever it carried before.
#include "tests/sim/wire.h"

#include "gtest/gtest.h"
#include "tests/sim/sim.h"

namespace lorry::sim {
namespace {

const VersionKey kFirst{AdapterName("math"), RunId(1), VersionNumber(1)};
const VersionKey kSecond{AdapterName("math"), RunId(1), VersionNumber(2)};

fleet::ObservedResidency Residency(const VersionKey& key, fleet::ResidencyState state) {
  const std::string number = std::to_string(key.number.value);
  return {.name = EngineName("math-v" + number + "-0123456789ab"), .key = key, .state = state};
}

class WireTest : public ::testing::Test {
 protected:
  fleet::Observed Carry() { return *wire_.Carry(sim_.oracle, document_); }

  Sim sim_{1};
  Wire<fleet::Observed> wire_;
  fleet::Observed document_{.journal = JournalId("j"), .boot = BootId("b")};
};

TEST_F(WireTest, EachDocumentComesOutWhole) {
  document_.residencies = {Residency(kFirst, fleet::ResidencyState::kLoaded)};
  document_.rows = {{.adapter = kFirst.adapter, .mode = fleet::RowMode::kOpen}};
  EXPECT_EQ(Carry(), document_);
  ++document_.sequence;
  EXPECT_EQ(Carry(), document_);
  document_.residencies.push_back(Residency(kSecond, fleet::ResidencyState::kLoading));
  document_.residencies.front().in_flight = 3;
  EXPECT_EQ(Carry(), document_);
  document_.residencies.erase(document_.residencies.begin());
  document_.rows.clear();
  EXPECT_EQ(Carry(), document_);
  EXPECT_FALSE(sim_.oracle.violated());
}

// A proxy's FAILED without a failure is the member's own.
TEST_F(WireTest, WhatTheCodecChangesIsChangedEachTime) {
  document_.residencies = {Residency(kFirst, fleet::ResidencyState::kLoaded)};
  EXPECT_EQ(Carry(), document_);
  document_.residencies.push_back(Residency(kSecond, fleet::ResidencyState::kFailed));
  for (int times = 0; times < 3; ++times) {
    ++document_.sequence;
    const fleet::Observed out = Carry();
    EXPECT_EQ(out.residencies.at(0), document_.residencies.at(0));
    EXPECT_EQ(out.residencies.at(1).failure, fleet::Failure::kMember);
  }
}

TEST_F(WireTest, WhatTheCodecChangesOfTheEngineIsChangedEachTime) {
  EXPECT_EQ(Carry(), document_);
  document_.health_detail = "\xff";
  for (int times = 0; times < 2; ++times) {
    ++document_.sequence;
    EXPECT_EQ(Carry().health_detail, "\uFFFD");
  }
  document_.health_detail = "";
  EXPECT_EQ(Carry(), document_);
  document_.engine_version = "\xff";
  EXPECT_EQ(Carry().engine_version, "\uFFFD");
}

TEST_F(WireTest, WhatCannotBeReadIsTheCodecsMistake) {
  EXPECT_EQ(Carry(), document_);
  document_.rows = {{.adapter = AdapterName("no adapter's name")}};
  Carry();
  EXPECT_TRUE(sim_.oracle.violated());
}

}  // namespace
}  // namespace lorry::sim
