// Records that earlier versions wrote are read by this one and by every later one. What a version
// adds to them is added to testdata/records.jsonl, and a line there is never changed.
#include "services/engine_proxy/machine/records.h"

#include "gtest/gtest.h"
#include "tests/testing/golden_records.h"

namespace lorry::proxy {
namespace {

std::vector<RecordValue> Meant() {
  const EngineName v1("math-v1-0123456789ab");
  const VersionKey key{AdapterName("math"), RunId(2), VersionNumber(1)};
  const NameRecord name{key, Digest{"d"}, fleet::Render::kRsloraFolded, "/p", BootId("b1")};
  NameRecord tried = name;
  tried.tried_on = BootId("b0");
  tried.trial = 5;
  tried.asked = false;
  NameRecord leased = tried;
  leased.leased = true;
  NameRecord probed = leased;
  probed.traits = {.rank_max = 16,
                   .rslora = true,
                   .rank_or_alpha_pattern = true,
                   .partial_groups = true,
                   .all_b_zero = true,
                   .relative_norm_ppm = 7,
                   .modules = {"q_proj"}};
  probed.probe = fleet::ProbeMode::kDiffers;
  probed.probe_gap_ppm = 9;
  NameRecord apart = probed;
  apart.apart_ppm = 500'000;
  apart.slept_on = BootId("b1");
  return {JournalRecord{MemberId("e1"), JournalId("j1")},
          TermRecord{Term{2, 7}},
          RowRecord{2, true, Epoch(3), v1, Epoch(4)},
          RowRecord{2, true, Epoch(3), v1, Epoch(4), PoolName("rollout")},
          BootRecord{BootId("b1")},
          name,
          tried,
          PausedRecord{BootId("b1"), fleet::PauseKind::kKeep},
          WedgedRecord{BootId("b1"), v1},
          KillerRecord{2},
          KillerRecord{2},
          UnloadingRecord{BootId("b1"), v1, 99},
          BootRecord{BootId("b1")},
          leased,
          probed,
          PausedRecord{BootId("b1"), fleet::PauseKind::kAbort, 900'000},
          BindingRecord{EngineName("lorry.binding-v0-0123456789ab"), Digest{"d"}, probed.traits,
                        fleet::Render::kRsloraFolded, "/p", 3},
          AsleepRecord{BootId("b1"), {"kv_cache", "weights"}},
          AsleepRecord{BootId("b1"), {"kv_cache", "weights"}, {"weights"}},
          apart};
}

TEST(Records, OfEarlierVersionsAreRead) {
  testing::ExpectRead(LORRY_PROXY_RECORDS, Meant(), Decode);
}

TEST(Records, WhatIsWrittenIsRead) {
  for (const RecordValue& value : Meant()) {
    const absl::StatusOr<RecordValue> read = Decode(Encode(value));
    ASSERT_TRUE(read.ok()) << Encode(value) << ": " << read.status();
    EXPECT_EQ(*read, value) << Encode(value);
  }
}

TEST(Records, EveryKindThatIsWrittenNowIsAmongThem) { testing::ExpectEveryKind(Meant()); }

TEST(Records, OfAnUnknownKindOrTypeAreRefused) {
  EXPECT_FALSE(Decode("{\"kind\":\"tea\"}").ok());
  EXPECT_FALSE(Decode("{\"kind\":\"boot\",\"boot\":7}").ok());
  EXPECT_FALSE(Decode("[]").ok());
}

}  // namespace
}  // namespace lorry::proxy
