// Records that earlier versions wrote are read by this one and by every later one. What a version
// adds to them is added to testdata/records.jsonl, and a line there is never changed.
#include "services/sync_orchestrator/machine/records.h"

#include "gtest/gtest.h"
#include "tests/testing/golden_records.h"

namespace lorry::sync {
namespace {

std::vector<RecordValue> Meant() {
  const VersionInfo version{{AdapterName("math"), RunId(2), VersionNumber(81)},
                            Digest{"d"},
                            {8, true, false, true, false, 1'234, {"q_proj"}}};
  return {
      MetaRecord{Term{3, 4}, Worth::kSettled},
      MemberRecord{PoolName("rollout"), JournalId("j"), 4, true, "broken", false, BootId("b"), true,
                   true},
      PoolRecord{
          Epoch(7), {{Epoch(6), version}}, {version.key}, {version.key}, version.key, std::nullopt},
      SyncRecord{Epoch(7),
                 version,
                 fleet::SyncMode::kBarrier,
                 true,
                 {{MemberId("e1"), BootId("b"), Drop::kBarred, "rank 64"}},
                 3},
      DecisionRecord{Epoch(7), version.key, false, Abort::kPoisoned},
      LeaseRecord{version, PoolName("rollout"), "client", 1'000},
      VerdictRecord{version.key,
                    {{EngineGroup("vllm 1"),
                      {Verdict::kStalls,
                       "rank 64",
                       {{MemberId("e1"), 1}},
                       {{MemberId("e2"), {BootId(), 1}}},
                       {{MemberId("e3"), {BootId("b"), 2}}}}}},
                    {{MemberId("e1"), {JournalId(), 2}}}},
      RequestsRecord{{{"a\xff", version.key, Epoch(7)}, {"b", std::nullopt, Epoch(0)}}},
      // Of before verdicts had groups.
      VerdictRecord{version.key, {}, {{MemberId("e1"), {JournalId(), 1}}}},
      // Since an orchestrator knows what its records are worth.
      MetaRecord{Term{3, 4}, Worth::kNew},
      MetaRecord{Term{3, 4}, Worth::kLost},
      HoldsRecord{Revision(7), Revision(6)},
      // Since doors can be made to flip together.
      PoolRecord{Epoch(7), {}, {}, {}, std::nullopt, std::nullopt, Epoch(5)},
      // Since members may leave and come back with the journal that they had.
      VerdictRecord{version.key, {}, {{MemberId("e1"), {JournalId("j"), 2}}}},
      // Since leave to try is written down.
      VerdictRecord{version.key,
                    {{EngineGroup("vllm 1"),
                      {.leave = {{MemberId("e1"), {BootId("b"), JournalId("j"), true}}}}}},
                    {}},
      // Since whoever leaves in its try is remembered.
      VerdictRecord{version.key,
                    {{EngineGroup("vllm 1"),
                      {.leave = {{MemberId("e1"), {BootId("b"), JournalId("j"), false, true}}}}}},
                    {}},
      // Since it is known which boot hung.
      VerdictRecord{version.key,
                    {{EngineGroup("vllm 1"), {.hung = {{MemberId("e2"), {BootId("b"), 1}}}}}},
                    {}},
      // Since decisions for adapters that are gone are forgotten.
      MetaRecord{Term{3, 4}, Worth::kSettled, Epoch(9)},
      PoolRecord{Epoch(12), {}, {}, {}, std::nullopt, std::nullopt, Epoch(11), Epoch(9)},
      // Since another source in the policy ends a sync.
      SyncRecord{.epoch = Epoch(7),
                 .version = version,
                 .source = {fleet::PoolSource::Kind::kPool, PoolName("rollout"), {}}},
      SyncRecord{.epoch = Epoch(7),
                 .version = version,
                 .source = {fleet::PoolSource::Kind::kAlias, {}, AliasName("best")}},
  };
}

TEST(Records, SurviveTheirText) {
  for (const RecordValue& record : Meant()) {
    const absl::StatusOr<RecordValue> decoded = Decode(Encode(record));
    ASSERT_TRUE(decoded.ok()) << Encode(record);
    EXPECT_EQ(*decoded, record) << Encode(record);
  }
}

TEST(Records, OfEarlierVersionsAreRead) {
  testing::ExpectRead(LORRY_ORCHESTRATOR_RECORDS, Meant(), Decode);
}

TEST(Records, EveryKindThatIsWrittenNowIsAmongThem) { testing::ExpectEveryKind(Meant()); }

TEST(Records, UnreadableTextIsAnError) {
  EXPECT_FALSE(Decode("{").ok());
  EXPECT_FALSE(Decode("{\"kind\":\"tea\"}").ok());
  EXPECT_FALSE(Decode("{\"kind\":\"meta\"}").ok());
}

}  // namespace
}  // namespace lorry::sync
