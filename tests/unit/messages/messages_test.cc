// Values survive the wire, and what does not make sense stops at the edge.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "lib/base/error.h"
#include "lib/fleet/window.h"
#include "lib/rpc/fleet_messages.h"
#include "lib/rpc/policy_messages.h"

namespace lorry::rpc {
namespace {

VersionKey Version(uint64_t number) {
  return {AdapterName("policy"), RunId(2), VersionNumber(number)};
}

fleet::Desired SomeDesired() {
  fleet::Desired desired{
      .term = {3, 4}, .revision = Revision(9), .journal = JournalId("j1"), .boot = BootId("b1")};
  desired.rows = {{.adapter = AdapterName("policy"),
                   .mode = fleet::RowMode::kOpen,
                   .epoch = Epoch(7),
                   .target = EngineName("policy-v12-aaaaaaaaaaaa"),
                   .serve_from = Epoch(3)},
                  {.adapter = AdapterName("second"),
                   .mode = fleet::RowMode::kHeld,
                   .epoch = Epoch(8),
                   .hold_for_ms = 500,
                   .quiesce = {fleet::PauseKind::kKeep, 5, true}}};
  desired.wanted = {{.name = EngineName("policy-v12-aaaaaaaaaaaa"),
                     .key = Version(12),
                     .digest = Digest{"sha256-xxh3:ab"},
                     .traits = {.rank_max = 8, .rslora = true, .modules = {"k_proj", "q_proj"}},
                     .render = fleet::Render::kRsloraFolded,
                     .must = true,
                     .load = false,
                     .eviction_rank = 2,
                     .lag = 0,
                     .probe = fleet::ProbeMode::kDiffers,
                     .probe_gap_ppm = 7,
                     .leased = true,
                     .on_demand = true}};
  desired.aliases = {
      {AdapterName("policy"), AliasName("eval"), EngineName("policy-v12-aaaaaaaaaaaa")}};
  desired.rules = {{.adapter = AdapterName("policy"),
                    .current_run = RunId(2),
                    .max_staleness = 3,
                    .stale = fleet::StaleMode::kTag,
                    .no_adapter = fleet::NoAdapterMode::kLatest,
                    .hold_limit_ms = 10,
                    .in_flight = fleet::InFlightMode::kAbort,
                    .demand_wait_ms = 11}};
  return desired;
}

fleet::Observed SomeObserved() {
  fleet::Observed observed{.journal = JournalId("j1"),
                           .sequence = 5,
                           .boot = BootId("b1"),
                           .term = {3, 4},
                           .revision = Revision(9),
                           .health = fleet::MemberHealth::kWedged,
                           .health_detail = "why"};
  observed.limits = {.kind = fleet::EngineKind::kSglang,
                     .rank_limit = 16,
                     .slots = 8,
                     .batch_slots = 4,
                     .engine_modules = {"q_proj"}};
  observed.engine_version = "0.5";
  observed.rows = {{.adapter = AdapterName("policy"),
                    .mode = fleet::RowMode::kLocked,
                    .incarnation = 2,
                    .epoch = Epoch(6),
                    .target = EngineName("policy-v11-aaaaaaaaaaaa"),
                    .barrier = Epoch(7),
                    .revoked = Epoch(5),
                    .waits_for = "requests in flight"}};
  observed.residencies = {{.name = EngineName("policy-v12-aaaaaaaaaaaa"),
                           .key = Version(12),
                           .state = fleet::ResidencyState::kFailed,
                           .reason = "PROBE_FAILED",
                           .detail = "d",
                           .failure = fleet::Failure::kEngineHung,
                           .gap = fleet::ObservedGap{.mean_ppm = 11, .max_ppm = 12},
                           .bytes_done = 1,
                           .bytes_total = 2,
                           .in_flight = 3,
                           .count_known = false},
                          {.name = EngineName("policy-v13-bbbbbbbbbbbb"),
                           .key = Version(13),
                           .state = fleet::ResidencyState::kFetched,
                           .no_slot = true}};
  observed.paused = fleet::DesiredPause{.kind = fleet::PauseKind::kAbort, .deadline_ms = 7};
  observed.killers = {{EngineName("policy-v13-bbbbbbbbbbbb"), 2}};
  observed.leaves = true;
  return observed;
}

TEST(Messages, DesiredSurvivesTheWire) {
  const auto back = FromProto(ToProto(SomeDesired()));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_TRUE(*back == SomeDesired());
}

TEST(Messages, ObservedSurvivesTheWire) {
  const auto back = FromProto(ToProto(SomeObserved()));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_TRUE(*back == SomeObserved());
}

TEST(Messages, WordsThatAreNotUtf8TakeNoReportWithThem) {
  fleet::Observed observed = SomeObserved();
  observed.residencies.at(0).detail = "caf\xe9";
  observed.health_detail = std::string(4'095, 'x') + "é";
  lorry::sync::v1::Observed parsed;
  ASSERT_TRUE(parsed.ParseFromString(ToProto(observed).SerializeAsString()));
  EXPECT_EQ(FromProto(parsed)->residencies.at(0).detail, "caf\uFFFD");
  EXPECT_EQ(FromProto(parsed)->health_detail, std::string(4'095, 'x'));
  // One of an older proxy, which does not cut them.
  parsed.set_health_detail(observed.health_detail);
  EXPECT_EQ(FromProto(parsed)->health_detail, std::string(4'095, 'x'));
}

TEST(Messages, NoSlotIsOnlyForWhatIsFetched) {
  fleet::Observed observed = SomeObserved();
  observed.residencies.at(1).state = fleet::ResidencyState::kLoaded;
  EXPECT_FALSE(FromProto(ToProto(observed))->residencies.at(1).no_slot);
}

TEST(Messages, UnknownEnumerationsStopAtTheEdge) {
  auto desired = ToProto(SomeDesired());
  desired.mutable_rows(0)->set_mode(static_cast<lorry::sync::v1::RowMode>(77));
  EXPECT_EQ(ReasonOf(FromProto(desired).status()), "MESSAGE_INVALID");
}

TEST(Messages, AFailureThatIsNotUnderstoodBlamesNoVersion) {
  auto observed = ToProto(SomeObserved());
  observed.mutable_residencies(0)->clear_failure();  // an older proxy's
  EXPECT_EQ(FromProto(observed)->residencies[0].failure, fleet::Failure::kMember);
  observed.mutable_residencies(0)->set_failure(
      static_cast<lorry::sync::v1::ResidencyFailure>(77));  // a newer one's
  EXPECT_EQ(FromProto(observed)->residencies[0].failure, fleet::Failure::kMember);
}

TEST(Messages, NamesAreCheckedAtTheEdge) {
  auto desired = ToProto(SomeDesired());
  desired.mutable_rows(0)->set_adapter("../etc");
  EXPECT_EQ(ReasonOf(FromProto(desired).status()), "NAME_INVALID");
  desired = ToProto(SomeDesired());
  desired.mutable_rows(0)->clear_target();
  EXPECT_EQ(ReasonOf(FromProto(desired).status()), "MESSAGE_INVALID")
      << "an open row serves something";
  desired = ToProto(SomeDesired());
  desired.mutable_wanted(0)->set_engine_name("../../policy-v12-aaaaaaaaaaaa");
  EXPECT_EQ(ReasonOf(FromProto(desired).status()), "MESSAGE_INVALID") << "directories are named so";
}

TEST(Messages, AGapIsGivenInNats) {
  lorry::common::v1::AdapterPolicy policy;
  policy.set_probe_gap(0.05);
  EXPECT_EQ(PolicyFromProto(policy)->probe_gap_ppm, 50'000u);
  EXPECT_EQ(PolicyToProto(*PolicyFromProto(policy)).probe_gap(), 0.05);
  policy.set_probe_gap(0);
  EXPECT_EQ(PolicyFromProto(policy)->probe_gap_ppm, 0u) << "only measured";
  for (const double nonsense : {-0.1, 101.0, std::nan("")}) {
    policy.set_probe_gap(nonsense);
    EXPECT_EQ(ReasonOf(PolicyFromProto(policy).status()), "POLICY_INVALID");
  }
}

TEST(Messages, AnEmptyPolicyIsTheDefault) {
  const auto policy = PolicyFromProto({});
  ASSERT_TRUE(policy.ok());
  EXPECT_TRUE(*policy == fleet::AdapterPolicy{});
}

TEST(Messages, APolicySurvivesTheWire) {
  fleet::AdapterPolicy policy;
  policy.pools = {
      {PoolName("rollout"), {}},
      {PoolName("eval"), {fleet::PoolSource::Kind::kPool, PoolName("rollout"), AliasName()}},
      {PoolName("best"), {fleet::PoolSource::Kind::kAlias, PoolName(), AliasName("best")}}};
  policy.max_staleness = 4;
  policy.keep = {fleet::KeepRule::Kind::kCount, 6};
  policy.min_engines = {.is_share = false, .value = 2};
  policy.skip = fleet::SkipMode::kNever;
  policy.stage_deadline_ms = 1'000;
  const auto back = PolicyFromProto(PolicyToProto(policy));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_TRUE(*back == policy);
}

// Likewise: engines unload what is older, whatever the policy says.
TEST(Messages, AWindowLongerThanAPoolRemembersIsRefusedWhereItIsSet) {
  fleet::AdapterPolicy policy;
  policy.keep = {fleet::KeepRule::Kind::kCount, fleet::kWindowMax};
  policy.max_staleness = fleet::kWindowMax - 1;
  EXPECT_TRUE(CheckMaySet(policy).ok());
  ++policy.keep.count;
  EXPECT_TRUE(PolicyFromProto(PolicyToProto(policy)).ok());
  EXPECT_EQ(ReasonOf(CheckMaySet(policy)), "POLICY_INVALID");
  EXPECT_THAT(std::string(CheckMaySet(policy).message()),
              ::testing::HasSubstr("keep is 65; it must be 1 to 64"));
  policy.keep = {};
  ++policy.max_staleness;
  EXPECT_TRUE(PolicyFromProto(PolicyToProto(policy)).ok());
  EXPECT_THAT(std::string(CheckMaySet(policy).message()),
              ::testing::HasSubstr("max_staleness is 64; it must be below 64"));
}

TEST(Messages, AWindowSmallerThanTheStalenessIsRefusedWithTheArithmetic) {
  common::v1::AdapterPolicy policy;
  policy.set_max_staleness(3);
  policy.mutable_keep()->set_versions(2);
  const absl::Status status = PolicyFromProto(policy).status();
  EXPECT_EQ(ReasonOf(status), "POLICY_INVALID");
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("max_staleness + 1 = 4"));
}

// It is read from a message, since a store of an earlier release may hold it, and refused where it is
// set.
TEST(Messages, ValuesThatContradictEachOtherAreRefused) {
  common::v1::AdapterPolicy policy;
  policy.set_flush(common::v1::FLUSH_MODE_ALWAYS);
  const absl::StatusOr<fleet::AdapterPolicy> read = PolicyFromProto(policy);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(ReasonOf(CheckMaySet(*read)), "POLICY_INVALID");
  EXPECT_THAT(std::string(CheckMaySet(*read).message()),
              ::testing::HasSubstr("set quiesce to one of abort, wait, keep"));
  // What is shown of a policy and set again unchanged is accepted.
  EXPECT_TRUE(CheckMaySet(*PolicyFromProto(PolicyToProto(fleet::AdapterPolicy{}))).ok());
}

TEST(Messages, PoolsThatFollowNobodyAreRefused) {
  common::v1::AdapterPolicy policy;
  auto& pool = *policy.add_pools();
  pool.set_pool("eval");
  pool.set_other_pool("nowhere");
  EXPECT_EQ(ReasonOf(PolicyFromProto(policy).status()), "POLICY_INVALID");
}

}  // namespace
}  // namespace lorry::rpc
