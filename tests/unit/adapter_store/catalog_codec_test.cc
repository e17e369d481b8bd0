// Every field of every record survives the store, and what an older program wrote is read.
#include <nlohmann/json.hpp>

#include "services/adapter_store/catalog/codec.h"
#include "tests/unit/adapter_store/catalog_dsl.h"

namespace lorry::store {
namespace {

const VersionKey kKey{AdapterName("policy"), RunId(3), VersionNumber(7)};

template <typename Record>
void ExpectKept(const Record& record) {
  const auto read = Decode<Record>(Encode(record));
  ASSERT_THAT(read, IsOk());
  if constexpr (!std::is_same_v<Record, AttemptMark>) {
    EXPECT_TRUE(*read == record);
  }
  EXPECT_EQ(Encode(*read), Encode(record));
}

Adapter SomeAdapter() {
  Adapter adapter;
  adapter.name = AdapterName("policy");
  adapter.policy = {.encoded = std::string("\xff\0x", 3),
                    .quota_bytes = 1,
                    .max_tensor_norm = 2.5,
                    .quota_versions = 3,
                    .store_keep = 4,
                    .default_of = {"rollout", "eval"}};
  adapter.generation = 5;
  adapter.seen_before = 3;
  adapter.current_run = RunId(6);
  adapter.last_run = RunId(7);
  adapter.stored_bytes = 8;
  adapter.versions = 9;
  adapter.archived = true;
  return adapter;
}

Upload SomeUpload(UploadState state) {
  Upload upload;
  upload.id = UploadId("u-1");
  upload.key = kKey;
  upload.attempt = 1;
  upload.state = state;
  if (state == UploadState::kDead) {
    upload.why = Error(absl::StatusCode::kAborted, "RANGE_CONFLICT", "they differ; begin anew");
  }
  upload.image_bytes = 2;
  upload.header_bytes = 3;
  upload.header_sha256 = "hex";
  upload.config_json = "{\"r\":8}";
  upload.expected_digest = Digest{"sha256-xxh3:a"};
  upload.keep = true;
  upload.owner = "trainer";
  upload.blob = BlobKey("b-1");
  upload.begun_at_ms = 4;
  upload.ended_at_ms = 5;
  return upload;
}

TEST(Codec, KeepsEveryField) {
  ExpectKept(SomeAdapter());
  ExpectKept(GoneAdapter{.last_run = RunId(1), .generation = 2});
  ExpectKept(store::Run{.number = RunId(1),
                        .resumed_from = kKey,
                        .newest = 2,
                        .request_id = "\xff request",
                        .owner = "trainer",
                        .opened_at_ms = 3});
  ExpectKept(store::Run{.number = RunId(1)});
  ExpectKept(Version{.key = kKey,
                     .digest = Digest{"sha256-xxh3:a"},
                     .image_bytes = 1,
                     .config_json = "{}",
                     .canonical_config = "{\"r\":8}",
                     .traits = {.rank_max = 8,
                                .rslora = true,
                                .rank_or_alpha_pattern = true,
                                .partial_groups = true,
                                .all_b_zero = true,
                                .relative_norm_ppm = 9,
                                .modules = {"q_proj"}},
                     .stored_at_ms = 2,
                     .revision = 3,
                     .blob = BlobKey("b-1"),
                     .keep = true});
  ExpectKept(Tombstone{.digest = Digest{"sha256-xxh3:a"}, .deleted_at_ms = 1});
  ExpectKept(
      Alias{.adapter = kKey.adapter, .name = AliasName("eval"), .version = kKey, .generation = 1});
  ExpectKept(
      Alias{.adapter = kKey.adapter, .name = AliasName("eval"), .generation = 4, .seen_before = 2});
  for (const UploadState state : {UploadState::kOpen, UploadState::kStored, UploadState::kDead}) {
    ExpectKept(SomeUpload(state));
  }
  ExpectKept(
      Blob{.key = BlobKey("b-1"), .state = BlobState::kDeleting, .bytes = 1, .remove_after_ms = 2});
  ExpectKept(HolderSet{.holder = "orchestrator:a", .mark = {3, 1}, .versions = {kKey}});
  ExpectKept(AttemptMark{.attempt = 1, .upload = UploadId("u-1")});
  ExpectKept(std::vector<Change>{
      {.kind = Change::Kind::kAliasSet, .key = kKey, .alias = AliasName("eval")},
      {.kind = Change::Kind::kVersionStored, .key = kKey, .alias = {}}});
}

TEST(Codec, OnlyADeadUploadHasAReason) {
  Upload upload = SomeUpload(UploadState::kStored);
  EXPECT_FALSE(nlohmann::json::parse(Encode(upload)).contains("reason"));
}

TEST(Codec, QuotesOfAHostileHeaderAreWritten) {
  Upload upload = SomeUpload(UploadState::kDead);
  upload.why = Error(absl::StatusCode::kInvalidArgument, "IMAGE_MALFORMED", "near \"\xff\"");
  EXPECT_THAT(Decode<Upload>(Encode(upload)), IsOk());
}

TEST(Codec, WhatAnOlderProgramLeftOutHasItsOldMeaning) {
  auto fields = nlohmann::json::parse(Encode(SomeAdapter()));
  for (const char* newer : {"last_run", "archived", "store_keep", "seen_before"})
    fields.erase(newer);
  const auto adapter = Decode<Adapter>(fields.dump());
  ASSERT_THAT(adapter, IsOk());
  EXPECT_EQ(adapter->last_run, adapter->current_run);
  EXPECT_FALSE(adapter->archived);
  EXPECT_EQ(adapter->policy.store_keep, std::nullopt);
  EXPECT_EQ(adapter->seen_before, 4u);
  EXPECT_EQ(Decode<Alias>(R"({"adapter":"a","name":"b","generation":5})")->seen_before, 4u);
  auto set =
      nlohmann::json::parse(Encode(HolderSet{.holder = "a", .mark = {3, 1}, .versions = {}}));
  set.erase("incarnation");
  EXPECT_EQ(Decode<HolderSet>(set.dump())->mark, (HolderMark{0, 1}))
      << "before any that is counted";
}

}  // namespace
}  // namespace lorry::store
