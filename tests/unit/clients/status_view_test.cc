// The fleet as tables and as lines of change.
#include "clients/cli/status_view.h"

#include <gmock/gmock.h>

#include "absl/strings/str_cat.h"

namespace lorry::cli {
namespace {

namespace pb = lorry::sync::v1;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

pb::MemberStatus& AddMember(StatusMessage& status, const std::string& name,
                            const std::string& state) {
  auto& member = *status.add_members();
  member.set_member(name);
  member.set_pool("rollout");
  member.set_state(state);
  return member;
}

void Serve(pb::MemberStatus& member, pb::RowMode mode, const std::string& target) {
  auto& row = *member.mutable_observed()->add_rows();
  row.set_adapter("policy");
  row.set_mode(mode);
  row.set_target(target);
}

pb::ObservedResidency& Hold(pb::MemberStatus& member, pb::ResidencyState state,
                            const std::string& name) {
  auto& residency = *member.mutable_observed()->add_residencies();
  residency.set_engine_name(name);
  residency.mutable_version()->set_adapter("policy");
  residency.set_state(state);
  return residency;
}

// One engine serves v11 and fetches v12, the other failed to load it.
StatusMessage Fleet() {
  StatusMessage status;
  status.set_store_connected(true);
  auto& one = AddMember(status, "e1", "READY");
  Serve(one, pb::ROW_MODE_OPEN, "policy-v11-0123456789ab");
  Hold(one, pb::RESIDENCY_STATE_LOADED, "policy-v11-0123456789ab").set_in_flight(3);
  auto& fetching = Hold(one, pb::RESIDENCY_STATE_FETCHING, "policy-v12-ba9876543210");
  fetching.set_bytes_done(45);
  fetching.set_bytes_total(100);
  auto& two = AddMember(status, "e2", "WEDGED");
  Serve(two, pb::ROW_MODE_HELD, "policy-v11-0123456789ab");
  Hold(two, pb::RESIDENCY_STATE_FAILED, "policy-v12-ba9876543210").set_reason("ENGINE_REFUSED");
  auto& pool = *status.add_pools();
  pool.set_adapter("policy");
  pool.set_pool("rollout");
  pool.set_epoch(4);
  pool.mutable_latest()->set_run(1);
  pool.mutable_latest()->set_number(11);
  pool.mutable_running()->set_state(pb::SYNC_STATE_STAGING);
  pool.mutable_running_version()->set_run(1);
  pool.mutable_running_version()->set_number(12);
  return status;
}

TEST(StatusView, SaysWhereAVersionIsServedFromTheDisk) {
  StatusMessage status = Fleet();
  auto& member = AddMember(status, "e3", "READY");
  Serve(member, pb::ROW_MODE_OPEN, "policy-v11-0123456789ab");
  Hold(member, pb::RESIDENCY_STATE_FETCHED, "policy-v11-0123456789ab");
  const std::string text = EnginesByAdapter(status, 80).Render(false);
  EXPECT_NE(text.find("e3      READY   v11, on disk until asked for\n"), std::string::npos) << text;
  member.mutable_observed()->mutable_residencies(0)->set_reason("NO_SLOT");
  const std::string full = EnginesByAdapter(status, 80).Render(false);
  EXPECT_NE(full.find("v11, v11 fetched, NO_SLOT\n"), std::string::npos) << full;
}

TEST(StatusView, ShowsEnginesDownAndAdaptersAcross) {
  EXPECT_EQ(EnginesByAdapter(Fleet(), 80).Render(false),
            "ENGINE  STATE   policy\n"
            "e1      READY   v11, v12 fetching 45 %, 3 in flight\n"
            "e2      WEDGED  v11 held, v12 FAILED ENGINE_REFUSED\n");
}

TEST(StatusView, SaysWhyAFetchIsHeldUp) {
  StatusMessage status = Fleet();
  auto& residencies = *status.mutable_members(0)->mutable_observed()->mutable_residencies();
  residencies.at(1).set_reason("FETCH_UNANSWERED");
  EXPECT_THAT(EnginesByAdapter(status, 80).Render(false),
              HasSubstr("v12 fetching, FETCH_UNANSWERED"));
}

TEST(StatusView, ShowsHowFarAnEngineIsFromTheTrainer) {
  StatusMessage status = Fleet();
  auto& residencies = *status.mutable_members(0)->mutable_observed()->mutable_residencies();
  residencies.at(0).mutable_gap()->set_mean_ppm(312);
  EXPECT_THAT(EnginesByAdapter(status, 80).Render(false), HasSubstr("v11 (gap 0.00031), v12 "));
}

TEST(StatusView, ShowsEnginesAndAdaptersDownWhereTheyDoNotFitAcross) {
  StatusMessage status = Fleet();
  AddMember(status, "e3", "LOST");
  EXPECT_EQ(EnginesByAdapter(status, 40).Render(false),
            "ENGINE  STATE   ADAPTER  SERVES\n"
            "e1      READY   policy   v11, v12 fetching 45 %, 3 in flight\n"
            "e2      WEDGED  policy   v11 held, v12 FAILED ENGINE_REFUSED\n"
            "e3      LOST    -        -\n");
}

TEST(StatusView, AReadyEngineWhoseProxySaysNothingIsSilent) {
  StatusMessage status = Fleet();
  status.mutable_members(0)->set_observed_age_ms(5'900);
  EXPECT_THAT(EnginesByAdapter(status, 80).Render(false), HasSubstr("READY   v11"));
  status.mutable_members(0)->set_observed_age_ms(8'000);
  EXPECT_THAT(EnginesByAdapter(status, 80).Render(false), HasSubstr("READY, silent for 8 s  v11"));
  EXPECT_THAT(Engines(status).Render(false), HasSubstr("READY, silent for 8 s"));
}

TEST(StatusView, InALargeFleetEnginesThatStandAlikeShareALine) {
  StatusMessage status;
  for (int i = 0; i < 3'000; ++i) {
    auto& member = AddMember(status, absl::StrCat("e", i), i == 7 ? "LOST" : "READY");
    Serve(member, pb::ROW_MODE_OPEN, "policy-v12-ba9876543210");
    auto& held = Hold(member, pb::RESIDENCY_STATE_LOADED, "policy-v12-ba9876543210");
    held.set_in_flight(static_cast<uint32_t>(i));  // which would make each of them another
    held.mutable_gap()->set_mean_ppm(static_cast<uint32_t>(i));
    auto& coming = Hold(member, pb::RESIDENCY_STATE_FETCHING, "policy-v13-ba9876543210");
    coming.set_bytes_done(static_cast<uint64_t>(i));
    coming.set_bytes_total(3'000);
  }
  EXPECT_TRUE(IsLarge(status));
  EXPECT_EQ(EnginesByAdapter(status, 80).Render(false),
            "ENGINE        STATE  policy\n"
            "2999 engines  READY  v12, v13 fetching\n"
            "e7            LOST   v12, v13 fetching\n");
  EXPECT_EQ(EnginesByAdapter(status, 30).Render(false),
            "ENGINE        STATE  ADAPTER  SERVES\n"
            "2999 engines  READY  policy   v12, v13 fetching\n"
            "e7            LOST   policy   v12, v13 fetching\n");
  EXPECT_FALSE(IsLarge(Fleet()));
}

TEST(StatusView, ShowsDecisionsAndWhatRuns) {
  EXPECT_EQ(Pools(Fleet()).Render(false),
            "ADAPTER  POOL     LATEST  EPOCH  NEWEST  PHASE          WHY\n"
            "policy   rollout  r1.11   4      -       staging r1.12\n");
}

TEST(StatusView, WhatRunsWithoutAWordSaysWhereEachEngineStands) {
  StatusMessage status = Fleet();
  auto& running = *status.mutable_pools(0)->mutable_running();
  for (const char* name : {"e1", "e2"}) {
    auto& its = *running.add_progress();
    its.set_member(name);
    its.set_state(pb::RESIDENCY_STATE_LOADED);
  }
  running.mutable_progress(1)->set_state(pb::RESIDENCY_STATE_FETCHING);
  EXPECT_THAT(Pools(status).Render(false), HasSubstr("staging r1.12  e2 fetching; e1 loaded\n"));
  running.set_reason("HELD");
  EXPECT_THAT(Pools(status).Render(false), HasSubstr("staging r1.12  HELD\n"));
}

TEST(StatusView, APinIsToldOnce) {
  StatusMessage status = Fleet();
  status.mutable_pools(0)->mutable_override()->set_run(1);
  status.mutable_pools(0)->mutable_override()->set_number(11);
  EXPECT_THAT(Pools(status).Render(false), HasSubstr("staging r1.12  pinned to r1.11\n"));
  status.mutable_pools(0)->mutable_running()->set_reason("OVERRIDDEN");
  EXPECT_THAT(Pools(status).Render(false), HasSubstr("staging r1.12  OVERRIDDEN\n"));
}

TEST(StatusView, CountsWhatEnginesHold) {
  EXPECT_THAT(Engines(Fleet()).Render(false), HasSubstr("e1      rollout  READY"));
}

TEST(StatusView, SaysOnlyWhatChanged) {
  const StatusMessage before = Fleet();
  EXPECT_THAT(Changes(before, before), IsEmpty());
  EXPECT_EQ(Changes({}, before).size(), 3u);
  StatusMessage after = before;
  after.mutable_members(0)->set_state("LOST");
  EXPECT_THAT(Changes(before, after), ElementsAre(HasSubstr("e1 LOST")));
  after = before;
  after.mutable_members()->RemoveLast();
  EXPECT_THAT(Changes(before, after), ElementsAre("engine e2 is gone"));
}

TEST(StatusView, WarnsOfWhatNeedsSomebody) {
  StatusMessage status = Fleet();
  EXPECT_THAT(Warnings(status), IsEmpty());
  status.set_store_connected(false);
  status.mutable_pools(0)->mutable_override()->set_number(9);
  status.mutable_pools(0)->add_poisoned()->set_number(10);
  EXPECT_THAT(Warnings(status), ElementsAre(HasSubstr("adapter-store"), HasSubstr("POISONED"),
                                            HasSubstr("rollback policy --pool rollout --lift")));
}

TEST(StatusView, NamesThePoolsThatWereMeantWhereOneHasNoEngine) {
  StatusMessage status = Fleet();
  for (const char* adapter : {"policy", "critic"}) {
    auto& pool = *status.add_pools();
    pool.set_adapter(adapter);
    pool.set_pool("rolout");
  }
  EXPECT_THAT(Warnings(status), ElementsAre("policy: no engine is in pool rolout, only in rollout; "
                                            "did you mean rollout?"));
  status.clear_members();
  EXPECT_THAT(Warnings(status), IsEmpty()) << "none has come to any pool";
}

TEST(StatusView, SaysOnceWhySeveralEnginesCannotJoin) {
  StatusMessage status = Fleet();
  for (auto& member : *status.mutable_members()) {
    member.mutable_observed()->set_health_detail("ENGINE_UNREACHABLE: connection refused");
    member.set_state("JOINING");
  }
  EXPECT_THAT(Warnings(status),
              ElementsAre("e1, e2 cannot join: ENGINE_UNREACHABLE: connection refused"));
  status.mutable_members(0)->set_state("READY");
  status.mutable_members(1)->mutable_observed()->set_health_detail("waits for the engine");
  EXPECT_THAT(Warnings(status), IsEmpty());
}

TEST(StatusView, SaysOnceWhatSeveralEnginesHaveTooFewSlotsFor) {
  StatusMessage status = Fleet();
  for (auto& member : *status.mutable_members()) {
    member.mutable_slot_need()->set_shortage("2 adapter slots, 3 are needed");
  }
  status.mutable_members(1)->mutable_slot_need()->set_batch_cost("batches requests of 1 adapter");
  EXPECT_THAT(Warnings(status), ElementsAre("e1, e2: 2 adapter slots, 3 are needed",
                                            "e2: batches requests of 1 adapter"));
}

TEST(StatusView, CallsSlotsUnknownWhereAnEngineThatHasALimitDoesNotTellIt) {
  StatusMessage status;
  auto& limits = *AddMember(status, "e1", "READY").mutable_observed()->mutable_limits();
  limits.set_kind(pb::ENGINE_KIND_VLLM);
  EXPECT_THAT(Engines(status).Render(false), HasSubstr("unknown"));
  limits.set_kind(pb::ENGINE_KIND_SGLANG);
  EXPECT_THAT(Engines(status).Render(false), HasSubstr("any"));
}

TEST(Progress, NamesAFewEnginesAndCountsMany) {
  pb::WatchSyncResponse progress;
  EXPECT_EQ(Progress(progress), "");
  const auto add = [&](const std::string& member, pb::ResidencyState state) -> auto& {
    auto& its = *progress.add_progress();
    its.set_member(member);
    its.set_state(state);
    return its;
  };
  add("e1", pb::RESIDENCY_STATE_LOADED).set_active(true);
  add("e2", pb::RESIDENCY_STATE_FETCHING);
  add("e3", pb::RESIDENCY_STATE_FETCHING);
  add("e4", pb::RESIDENCY_STATE_UNSPECIFIED).set_dropped("NO_SLOT");
  EXPECT_EQ(Progress(progress), "e4 NO_SLOT; e1 active; e2, e3 fetching");
  for (int i = 5; i < 10; ++i) add("e" + std::to_string(i), pb::RESIDENCY_STATE_LOADED);
  EXPECT_THAT(Progress(progress), HasSubstr("; 5 engines loaded"));
}

TEST(ShortVersion, IsTheMiddleOfAnEngineName) {
  EXPECT_EQ(ShortVersion("policy-v12-0123456789ab", "policy"), "v12");
  EXPECT_EQ(ShortVersion("other", "policy"), "other");
  EXPECT_EQ(ShortVersion("", "policy"), "");
}

}  // namespace
}  // namespace lorry::cli
