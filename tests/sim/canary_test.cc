// The simulator can fail: with a bug planted in a machine or in what surrounds it, some seed of a
// few breaks the invariant that the bug offends.
#include "gtest/gtest.h"
#include "tests/sim/swarm.h"

namespace lorry::sim {
namespace {

constexpr uint64_t kSeeds = 100;

// The first violation that some seed finds, empty when none does.
std::string FirstViolation(Plant plant) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const Result result = RunSeed(seed, plant);
    if (!result.violation.empty()) return result.violation;
  }
  return "";
}

TEST(Canary, UnloadingWithACountIsCaught) {
  EXPECT_EQ(FirstViolation(Plant::kCountsAreZero).rfind("invariant 6", 0), 0u);
}

TEST(Canary, IgnoringThatAnEngineHasAnotherBootIsCaught) {
  EXPECT_EQ(FirstViolation(Plant::kBootIsHidden).rfind("invariant 2", 0), 0u);
}

TEST(Canary, AStaleLeaderThatStillWritesIsCaught) {
  // Two leaders that undo each other's records: which invariant breaks first depends on the seed.
  EXPECT_NE(FirstViolation(Plant::kFenceIsIgnored), "");
}

TEST(Canary, ADecisionThatIsNotDurableIsCaught) {
  EXPECT_EQ(FirstViolation(Plant::kDecisionIsNotWritten).rfind("invariant 4", 0), 0u);
}

TEST(Canary, AForgottenLeaseIsCaught) {
  EXPECT_EQ(FirstViolation(Plant::kLeaseIsNotWritten).rfind("invariant 10", 0), 0u);
}

TEST(Canary, AForgottenLockIsCaught) {
  EXPECT_EQ(FirstViolation(Plant::kLockIsNotWritten).rfind("invariant 5", 0), 0u);
}

TEST(Canary, ObeyingAStaleLeaderIsCaught) {
  EXPECT_EQ(FirstViolation(Plant::kLowerTermIsObeyed).rfind("invariant 9", 0), 0u);
}

TEST(Canary, UnloadingWhatIsRoutedIsCaught) {
  EXPECT_EQ(FirstViolation(Plant::kRoutedIsUnloaded).rfind("invariant 6", 0), 0u);
}

TEST(Canary, LoadingAnAdapterOfAnotherBaseModelIsCaught) {
  EXPECT_EQ(FirstViolation(Plant::kMisfitIsLoaded).rfind("invariant 2", 0), 0u);
}

TEST(Canary, TakingTheBaseModelsAnswerForTheAdaptersIsCaught) {
  EXPECT_EQ(FirstViolation(Plant::kProbeIsBlind).rfind("invariant 2", 0), 0u);
}

TEST(Canary, ServingWhatIsTooFarBehindIsCaught) {
  EXPECT_EQ(FirstViolation(Plant::kLagIsForgotten).rfind("invariant 15", 0), 0u);
}

}  // namespace
}  // namespace lorry::sim
