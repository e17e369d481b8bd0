// Slots, engines' names and how findings read.
#include "clients/cli/doctor.h"

#include <gmock/gmock.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "clients/cli/local_fleet.h"

namespace lorry::cli {
namespace {

using ::testing::HasSubstr;
namespace pb = lorry::sync::v1;
using Grade = Finding::Grade;

TEST(JudgeCertificate, WarnsInItsLastWeek) {
  constexpr int64_t kNow = 1'800'000'000, kHour = 3600, kDay = 24 * kHour;
  using Said = std::pair<Grade, std::string>;
  const auto judged = [](std::optional<int64_t> end) {
    const Finding finding = JudgeCertificate("of the store", end, kNow, "renew it");
    EXPECT_EQ(finding.remedy, finding.grade == Grade::kGood ? "" : "renew it");
    return Said(finding.grade, finding.what);
  };
  EXPECT_EQ(judged(kNow + 90 * kDay),
            Said(Grade::kGood, "the certificate of the store is good for 90 days"));
  EXPECT_EQ(judged(kNow + 7 * kDay - 1),
            Said(Grade::kWarning, "the certificate of the store ends in 6 days"));
  EXPECT_EQ(judged(kNow + 30 * kHour),
            Said(Grade::kWarning, "the certificate of the store ends in 30 hours"));
  EXPECT_EQ(judged(kNow + kHour + 1),
            Said(Grade::kWarning, "the certificate of the store ends in 1 hour"));
  EXPECT_EQ(judged(kNow - 1), Said(Grade::kBad, "the certificate of the store has ended"));
  EXPECT_EQ(judged(std::nullopt), Said(Grade::kBad, "the certificate of the store cannot be read"));
}

pb::MemberStatus Needs(uint32_t needed, uint32_t slots, pb::EngineKind kind) {
  pb::MemberStatus member;
  member.set_member("e1");
  member.mutable_slot_need()->set_needed(needed);
  member.mutable_observed()->set_boot_id("b");
  auto& limits = *member.mutable_observed()->mutable_limits();
  limits.set_slots(slots);
  limits.set_kind(kind);
  return member;
}

TEST(JudgeSlots, SaysWhatTheOrchestratorCounts) {
  auto member = Needs(8, 8, pb::ENGINE_KIND_SGLANG);
  EXPECT_EQ(JudgeSlots(member)->grade, Grade::kGood);
  EXPECT_EQ(JudgeSlots(member)->what, "e1 has 8 slots, needs 8 slots");
  member.mutable_slot_need()->set_shortage("7 adapter slots, 8 are needed");
  EXPECT_EQ(JudgeSlots(member)->grade, Grade::kBad);
  EXPECT_EQ(JudgeSlots(member)->what, "e1: 7 adapter slots, 8 are needed");
  EXPECT_FALSE(JudgeSlots(member)->remedy.empty());
}

TEST(JudgeSlots, NoLimitIsGoodOnSglangAndUnknownOnVllm) {
  EXPECT_EQ(JudgeSlots(Needs(3, 0, pb::ENGINE_KIND_SGLANG))->grade, Grade::kGood);
  const auto unknown = JudgeSlots(Needs(3, 0, pb::ENGINE_KIND_VLLM));
  EXPECT_EQ(unknown->grade, Grade::kWarning);
  EXPECT_THAT(unknown->remedy, HasSubstr("VLLM_SERVER_DEV_MODE=1"));
}

TEST(JudgeSlots, SaysNothingWhereNothingIsServedOrNoEngineIsKnown) {
  EXPECT_FALSE(JudgeSlots(Needs(0, 8, pb::ENGINE_KIND_VLLM)).has_value());
  auto unknown = Needs(3, 0, pb::ENGINE_KIND_VLLM);
  unknown.mutable_observed()->clear_boot_id();
  EXPECT_FALSE(JudgeSlots(unknown).has_value());
}

TEST(JudgeDecisions, LostRecordsAreBroken) {
  pb::GetStatusResponse status;
  status.set_lost("RECORDS_LOST");
  status.set_lost_detail("nothing is decided");
  status.add_pools()->mutable_running()->set_reason("RECORDS_LOST");  // as each says then
  const auto findings = JudgeDecisions(status);
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].grade, Grade::kBad);
  EXPECT_EQ(findings[0].what, "RECORDS_LOST: nothing is decided");
  EXPECT_THAT(findings[0].remedy, HasSubstr("lorry adopt"));
}

TEST(JudgeDecisions, WarnsOfEachPoolThatCannotGoOn) {
  pb::GetStatusResponse status;
  const auto add = [&](const std::string& reason, const std::string& detail) {
    pb::PoolStatus& pool = *status.add_pools();
    pool.set_adapter("math");
    pool.set_pool("rollout");
    pool.mutable_running_version()->set_number(7);
    pool.mutable_running()->set_reason(reason);
    pool.mutable_running()->set_detail(detail);
  };
  add("", "e1 loads it");
  add("OVERRIDDEN", "pinned");
  add("NEXT_VERSION", "passed over");
  EXPECT_TRUE(JudgeDecisions(status).empty()) << "it goes on, or somebody wants it so";
  add("NO_SLOT", "8 of 8 slots are taken");
  add("TOO_FEW_ENGINES", "");
  const auto findings = JudgeDecisions(status);
  ASSERT_EQ(findings.size(), 2u);
  EXPECT_EQ(findings[0].what, "math v7 waits in rollout: NO_SLOT: 8 of 8 slots are taken");
  EXPECT_EQ(findings[1].what, "math v7 waits in rollout: TOO_FEW_ENGINES");
  for (const Finding& finding : findings) {
    EXPECT_EQ(finding.grade, Grade::kWarning);
    EXPECT_FALSE(finding.remedy.empty()) << finding.what;
  }
}

TEST(JudgeVersions, WarnsWhereMoreThanThePatchDiffers) {
  EXPECT_EQ(JudgeVersions({{"sync-orchestrator", "0.1.0"}, {"this program", "0.1.0"}}).what,
            "everything is Lorry 0.1.0");
  const Finding patch = JudgeVersions({{"sync-orchestrator", "0.1.0"}, {"this program", "0.1.4"}});
  EXPECT_EQ(patch.grade, Grade::kGood);
  const Finding minor = JudgeVersions(
      {{"sync-orchestrator", "0.2.0"}, {"the proxy of e1", "0.1.0"}, {"this program", "0.1.0"}});
  EXPECT_EQ(minor.grade, Grade::kWarning);
  EXPECT_THAT(minor.what, HasSubstr("0.1.0 (the proxy of e1, this program), 0.2.0"));
  EXPECT_FALSE(minor.remedy.empty());
  const Finding unknown = JudgeVersions({{"adapter-store", ""}, {"this program", "0.1.0"}});
  EXPECT_EQ(unknown.grade, Grade::kWarning);
  EXPECT_THAT(unknown.what, HasSubstr("unknown (adapter-store), 0.1.0 (this program)"));
}

TEST(RenderFindings, MarksEachLineAndNamesTheRemedy) {
  EXPECT_EQ(RenderFindings({{Grade::kGood, "fine"},
                            {Grade::kWarning, "slow", "make it fast"},
                            {Grade::kBad, "broken", "mend it"}},
                           false),
            "✓ fine\n! slow\n    → make it fast\n✗ broken\n    → mend it\n");
}

TEST(RenderFindings, ObeysNoWordsOfEngines) {
  EXPECT_EQ(RenderFindings({{Grade::kGood, "e1 said \x1b[31m"}}, false), "✓ e1 said \\x1b[31m\n");
}

TEST(LookAtMachine, FindsSomethingToSayOfEachPart) {
  for (const Finding& finding : LookAtMachine()) {
    EXPECT_FALSE(finding.what.empty());
    EXPECT_EQ(finding.grade == Grade::kGood, finding.remedy.empty()) << finding.what;
  }
}

TEST(EngineUrl, MayBeAPortAlone) {
  // tidy: allow fixed-port: a text that is read, nothing is bound
  EXPECT_EQ(*EngineUrl("30000"), "http://127.0.0.1:30000");
  EXPECT_EQ(*EngineUrl("gpu7:8000"), "http://gpu7:8000");
  EXPECT_EQ(*EngineUrl("http://gpu7:8000/"), "http://gpu7:8000");
  for (const char* wrong : {"", "gpu7", "https://gpu7:8000", "gpu7:8000/v1", "gpu7:0", "0"}) {
    EXPECT_FALSE(EngineUrl(wrong).ok()) << wrong;
  }
}

TEST(MemberName, IsStableAndAName) {
  EXPECT_EQ(MemberName(*EngineUrl("30000")), "engine-30000");
  EXPECT_EQ(MemberName(*EngineUrl("10.0.0.7:30000")), "10-0-0-7-30000");
  EXPECT_EQ(MemberName(*EngineUrl("GPU_7.lab:8000")), "gpu-7-lab-8000");
}

}  // namespace
}  // namespace lorry::cli
