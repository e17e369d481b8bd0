// The simulator can fail: with a bug planted in a machine or in what surrounds it, some seed of a
// few breaks the invariant that the bug offends.
#include "gtest/gtest.h"
#include "tests/sim/swarm.h"

namespace lorry::sim {
namespace {

constexpr uint64_t kSeeds = 400;

// Starts with the words that say which invariant breaks, in some seed; in others a bug may break
// another one first.
void ExpectBreaks(Plant plant, const std::string& invariant) {
  std::string others;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const std::string violation = RunSeed({seed, plant}).violation;
    if (violation.empty()) continue;
    if (violation.rfind(invariant, 0) == 0) return;
    others += violation + "\n";
  }
  ADD_FAILURE() << "only: " << others;
}

TEST(Canary, UnloadingWithACountIsCaught) { ExpectBreaks(Plant::kCountsAreZero, "invariant 6"); }

TEST(Canary, IgnoringThatAnEngineHasAnotherBootIsCaught) {
  ExpectBreaks(Plant::kBootIsHidden, "invariant 2");
}

TEST(Canary, AStaleLeaderThatStillWritesIsCaught) {
  // Two leaders that undo each other's records: which invariant breaks first depends on the seed.
  ExpectBreaks(Plant::kFenceIsIgnored, "invariant");
}

TEST(Canary, ADecisionThatIsNotDurableIsCaught) {
  ExpectBreaks(Plant::kDecisionIsNotWritten, "invariant 4");
}

TEST(Canary, AForgottenLeaseIsCaught) { ExpectBreaks(Plant::kLeaseIsNotWritten, "invariant 10"); }

TEST(Canary, AForgottenLockIsCaught) { ExpectBreaks(Plant::kLockIsNotWritten, "invariant 5"); }

TEST(Canary, ObeyingAStaleLeaderIsCaught) {
  ExpectBreaks(Plant::kLowerTermIsObeyed, "invariant 9");
}

TEST(Canary, UnloadingWhatIsRoutedIsCaught) {
  ExpectBreaks(Plant::kRoutedIsUnloaded, "invariant 6");
}

TEST(Canary, LoadingAnAdapterOfAnotherBaseModelIsCaught) {
  ExpectBreaks(Plant::kMisfitIsLoaded, "invariant 2");
}

TEST(Canary, TakingTheBaseModelsAnswerForTheAdaptersIsCaught) {
  ExpectBreaks(Plant::kProbeIsBlind, "invariant 2");
}

TEST(Canary, AGoodbyeBeforeTheDoorIsClosedIsCaught) {
  ExpectBreaks(Plant::kGoodbyeComesFirst, "invariant 5");
}

TEST(Canary, TakingAnyAnswerForTheTrainersIsCaught) {
  ExpectBreaks(Plant::kGapIsBlind, "invariant 2");
}

TEST(Canary, AnEngineThatIsNotAtRestIsCaught) {
  ExpectBreaks(Plant::kPauseIsIgnored, "invariant 5");
}

TEST(Canary, AnEngineThatIsLeftPausedIsCaught) {
  ExpectBreaks(Plant::kResumeIsIgnored, "invariant 7");
}

TEST(Canary, EndingAFrameworksPauseIsCaught) {
  ExpectBreaks(Plant::kFrameworkIsIgnored, "invariant 7");
}

TEST(Canary, AFrameworksPauseWithoutAnEndIsCaught) {
  ExpectBreaks(Plant::kFrameworkHasNoEnd, "invariant 7");
}

TEST(Canary, LeavingRequestsWaitingForTheirAdapterIsCaught) {
  ExpectBreaks(Plant::kWaitIsNotReported, "invariant 13");
}

TEST(Canary, AForgottenSleepIsCaught) { ExpectBreaks(Plant::kSleepIsNotWritten, "invariant 6"); }

TEST(Canary, BelievingWhatAnEngineHadBeforeItSleptIsCaught) {
  ExpectBreaks(Plant::kSleepIsHidden, "invariant 2");
}

TEST(Canary, BelievingALookOfBeforeItWasWokenIsCaught) {
  ExpectBreaks(Plant::kLooksAreNeverOld, "invariant 14");
}

TEST(Canary, ForgettingThatAVersionDifferedIsCaught) {
  ExpectBreaks(Plant::kApartIsNotWritten, "invariant 2");
}

TEST(Canary, AForgottenBindingIsCaught) {
  ExpectBreaks(Plant::kBindingIsNotWritten, "invariant 2");
}

TEST(Canary, GoingOnWithRecordsThatADoorKnowsToBeOlderIsCaught) {
  ExpectBreaks(Plant::kDoorsAreNotBelieved, "invariant 18");
}

TEST(Canary, ServingWhatIsTooFarBehindIsCaught) {
  ExpectBreaks(Plant::kLagIsForgotten, "invariant 15");
}

}  // namespace
}  // namespace lorry::sim
