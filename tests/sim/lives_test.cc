// What the coroner counts, and what he does not.
#include "tests/sim/lives.h"

#include <string>

#include "gtest/gtest.h"

namespace lorry::sim {
namespace {

const VersionKey kVersion{AdapterName("math"), RunId(1), VersionNumber(1)};

class LivesTest : public ::testing::Test {
 protected:
  void Dies(const std::string& member, const std::string& boot, const std::string& group = "vllm") {
    lives_.DiedOf(kVersion, group, member, BootId(boot));
  }
  bool IsBlamed() const { return oracle_.violated(); }

  std::function<Tick()> clock_ = [] { return Tick(0); };
  Oracle oracle_{clock_};
  Lives lives_{oracle_};
};

TEST_F(LivesTest, AVersionMayCostAGroupTwo) {
  Dies("e1", "e1.1");
  Dies("e2", "e2.1");
  EXPECT_FALSE(IsBlamed());
  Dies("e3", "e3.1");
  EXPECT_TRUE(IsBlamed());
}

TEST_F(LivesTest, AndAnotherGroupTwoMore) {
  for (const char* member : {"e1", "e2"}) Dies(member, member);
  for (const char* member : {"s1", "s2"}) Dies(member, member, "sglang");
  EXPECT_FALSE(IsBlamed());
}

TEST_F(LivesTest, LostRecordsCostAsManyAgain) {
  lives_.RecordsLost();
  for (const char* member : {"e1", "e2", "e3", "e4"}) Dies(member, member);
  EXPECT_FALSE(IsBlamed());
  Dies("e5", "e5");
  EXPECT_TRUE(IsBlamed());
}

TEST_F(LivesTest, SoDoesALiftedVerdictAndAVersionThatComesBack) {
  lives_.Lifted(kVersion);
  lives_.ComesBack(kVersion);
  for (const char* member : {"e1", "e2", "e3", "e4", "e5", "e6"}) Dies(member, member);
  EXPECT_FALSE(IsBlamed());
  Dies("e7", "e7");
  EXPECT_TRUE(IsBlamed());
}

TEST_F(LivesTest, WhomAnOperatorTookOutCostsNothingUntilItIsBack) {
  lives_.PutAside("e1");
  for (int times = 0; times < 3; ++times) Dies("e1", "e1.1");
  EXPECT_FALSE(IsBlamed());
  lives_.TakenBack("e1");
  for (int times = 0; times < 3; ++times) Dies("e1", "e1.1");
  EXPECT_TRUE(IsBlamed());
}

TEST_F(LivesTest, NorDoesWhoSaidGoodbye) {
  lives_.Left("e1");
  for (int times = 0; times < 3; ++times) Dies("e1", "e1.1");
  EXPECT_FALSE(IsBlamed());
  lives_.IsBack("e1");
  for (int times = 0; times < 3; ++times) Dies("e1", "e1.1");
  EXPECT_TRUE(IsBlamed());
}

TEST_F(LivesTest, ADeathThatNobodyWasToldOfIsTakenBack) {
  Dies("e1", "e1.1");
  lives_.PutAside("e1");
  for (const char* member : {"e2", "e3"}) Dies(member, member);
  EXPECT_FALSE(IsBlamed());
}

TEST_F(LivesTest, OneThatALeaderHasHeardOfIsNot) {
  Dies("e1", "e1.1");
  lives_.Heard("e1", BootId());
  lives_.PutAside("e1");
  for (const char* member : {"e2", "e3"}) Dies(member, member);
  EXPECT_TRUE(IsBlamed());
}

TEST_F(LivesTest, AReportOfTheBootThatDiedTellsNothing) {
  Dies("e1", "e1.1");
  lives_.Heard("e1", BootId("e1.1"));
  lives_.PutAside("e1");
  for (const char* member : {"e2", "e3"}) Dies(member, member);
  EXPECT_FALSE(IsBlamed());
}

TEST_F(LivesTest, WithItsJournalAProxyHasNothingToTellBeforeItSeesAnotherBoot) {
  Dies("e1", "e1.1");
  lives_.JournalLost("e1");
  lives_.Heard("e1", BootId());
  lives_.PutAside("e1");
  for (const char* member : {"e2", "e3"}) Dies(member, member);
  EXPECT_FALSE(IsBlamed());
}

TEST_F(LivesTest, TheInnocentIsWhoseTriesEnginesSurvived) {
  lives_.DiedTrying(kVersion, BootId());
  EXPECT_FALSE(lives_.DiedTwice(kVersion));
  lives_.DiedTrying(kVersion, BootId());
  lives_.SaidToKill(kVersion);
  EXPECT_FALSE(IsBlamed());
}

TEST_F(LivesTest, AVersionThatIsSaidToKillAndDidNotIsCaught) {
  lives_.DiedTrying(kVersion, BootId());
  lives_.SaidToKill(kVersion);
  EXPECT_TRUE(IsBlamed());
}

TEST_F(LivesTest, WhoHungAndWhoDiedAreTwoAndMayBeSaidToHang) {
  lives_.HungTrying(kVersion, BootId("e1.1"));
  EXPECT_FALSE(lives_.CostTwo(kVersion));
  lives_.DiedTrying(kVersion, BootId("e1.2"));
  EXPECT_TRUE(lives_.CostTwo(kVersion));
  EXPECT_FALSE(lives_.DiedTwice(kVersion));
}

TEST_F(LivesTest, AnEngineThatHungBeforeItDiedIsOne) {
  lives_.HungTrying(kVersion, BootId("e1.1"));
  lives_.DiedTrying(kVersion, BootId("e1.1"));
  EXPECT_FALSE(lives_.CostTwo(kVersion));
}

}  // namespace
}  // namespace lorry::sim
