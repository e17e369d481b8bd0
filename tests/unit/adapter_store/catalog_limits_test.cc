// What the catalogue counts, names, bounds and forgets.
#include <functional>

#include "lib/fleet/held.h"
#include "services/adapter_store/catalog/keys.h"
#include "tests/unit/adapter_store/catalog_dsl.h"
#include "tests/unit/kv/racing_store.h"

namespace lorry::store {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class LimitsTest : public CatalogTest {
 protected:
  LimitsTest() { OpenRun(); }
  absl::Status SetPolicy(const Policy& policy) {
    return catalog_->SetAdapter(policy_, policy, std::nullopt).status();
  }
  absl::StatusOr<BegunUpload> BeginOther(uint64_t number) {
    BeginUploadArgs args = Args(number);
    args.key.adapter = AdapterName("other");
    args.key.run = RunId(1);
    return catalog_->BeginUpload(args);
  }
  static std::string Text(const absl::Status& status) { return std::string(status.message()); }
  const AdapterName policy_ = AdapterName("policy");
};

TEST_F(LimitsTest, IdsOfADirectoryAreItsOwn) {
  const std::string first = Begin(1)->upload.blob.value;
  const std::string instance = first.substr(0, first.rfind('-'));
  EXPECT_EQ(instance.size(), std::string("b-12345678").size());
  Restart();
  EXPECT_EQ(Begin(2)->upload.blob.value.substr(0, instance.size()), instance);
  EXPECT_NE(Begin(3)->upload.blob, Begin(2)->upload.blob);
  kv_ = kv::MakeMemoryStore();
  Restart();
  OpenRun();
  EXPECT_THAT(Begin(1)->upload.blob.value, Not(HasSubstr(instance)));
}

TEST_F(LimitsTest, ALedgerIsOfAnOpenUpload) {
  const UploadId id = Begin(1)->upload.id;
  EXPECT_EQ(*catalog_->GetLedger(id), "");
  ASSERT_THAT(catalog_->PutLedger(id, "half"), IsOk());
  EXPECT_EQ(*catalog_->GetLedger(id), "half");
  ASSERT_THAT(catalog_->EndUpload(id, Error(absl::StatusCode::kAborted, "X", "")), IsOk());
  EXPECT_EQ(*catalog_->GetLedger(id), "");
  ASSERT_THAT(catalog_->PutLedger(id, "late"), IsOk());
  EXPECT_EQ(*catalog_->GetLedger(id), "");
  const UploadId stored = Begin(2)->upload.id;
  ASSERT_THAT(catalog_->PutLedger(stored, "all"), IsOk());
  now_ms_ += 5;
  ASSERT_THAT(catalog_->StoreVersion(stored, Image("two")), IsOk());
  EXPECT_EQ(*catalog_->GetLedger(stored), "");
  EXPECT_EQ(catalog_->GetUpload(stored)->ended_at_ms, now_ms_);
}

TEST_F(LimitsTest, ABlobIsForgottenWhole) {
  const auto begun = Begin(1);
  ASSERT_THAT(catalog_->EndUpload(begun->upload.id, Error(absl::StatusCode::kAborted, "X", "")),
              IsOk());
  ASSERT_EQ(catalog_->ListDoomedBlobs()->size(), 1u);
  EXPECT_EQ(catalog_->ListDoomedBlobs()->front().remove_after_ms, now_ms_) << "no ticket names it";
  ASSERT_THAT(catalog_->ForgetBlob(begun->upload.blob), IsOk());
  EXPECT_THAT(*catalog_->ListBlobs(), IsEmpty());
  EXPECT_THAT(*kv::ListAll(*kv_, keys::kDoomed), IsEmpty());
}

TEST_F(LimitsTest, TheLogIsReadInPieces) {
  for (const uint64_t number : {1, 2, 3}) ASSERT_THAT(Publish(number), IsOk());
  std::vector<uint64_t> revisions;
  const auto note = [&](uint64_t revision, const std::vector<Change>&) {
    revisions.push_back(revision);
  };
  ASSERT_THAT(catalog_->ReadLog(1, 2, note), IsOk());
  EXPECT_THAT(revisions, ElementsAre(2, 3));
}

TEST_F(LimitsTest, MoreThanOneTransactionIsTidied) {
  for (uint64_t number = 0; number < 600; ++number) {
    const auto begun = Begin(7, number + 1);
    ASSERT_THAT(begun, IsOk());
    ASSERT_THAT(SetPolicy({}), IsOk());
  }
  now_ms_ += options_.dead_upload_kept_ms;
  options_.log_revisions_max = 2;
  Restart();
  ASSERT_THAT(catalog_->Tidy(), IsOk());
  EXPECT_THAT(*kv::ListAll(*kv_, keys::kEndedUploads), IsEmpty());
  EXPECT_EQ(kv::ListAll(*kv_, keys::kLog)->size(), 2u);
  EXPECT_THAT(LogAfter(*catalog_->Revision() - 2), ElementsAre("adapter policy", "adapter policy"));
}

TEST_F(LimitsTest, ALogOfManyPagesIsReadAndTidiedWhole) {
  const uint64_t before = *catalog_->Revision();
  for (int i = 0; i < 1'100; ++i) ASSERT_THAT(SetPolicy({}), IsOk());
  size_t read = 0;
  const auto count = [&](uint64_t, const std::vector<Change>&) { ++read; };
  ASSERT_THAT(catalog_->ReadLog(before, 10'000, count), IsOk());
  EXPECT_EQ(read, *catalog_->Revision() - before);
  options_.log_revisions_max = 2;
  Restart();
  ASSERT_THAT(catalog_->Tidy(), IsOk());
  EXPECT_EQ(kv::ListAll(*kv_, keys::kLog)->size(), 2u);
}

TEST_F(LimitsTest, TombstonesOfEarlierRunsGo) {
  for (const uint64_t number : {1, 2}) ASSERT_THAT(Publish(number), IsOk());
  ASSERT_THAT(catalog_->DeleteVersion(Key(1)), IsOk());
  OpenRun();
  ASSERT_THAT(Publish(3), IsOk());
  ASSERT_THAT(catalog_->DeleteVersion(Key(3)), IsOk());
  ASSERT_THAT(catalog_->Tidy(), IsOk());
  EXPECT_THAT(catalog_->DeleteVersion(Key(1, 1)), IsOk()) << "a call that is repeated";
  now_ms_ += options_.dead_upload_kept_ms;
  ASSERT_THAT(catalog_->Tidy(), IsOk());
  EXPECT_EQ(kv::ListAll(*kv_, "tombstone/")->size(), 1u);
  EXPECT_THAT(Begin(3), IsError("VERSION_CONFLICT"));
  run_ = 1;
  EXPECT_THAT(Begin(1), IsError("RUN_FENCED"));
}

TEST_F(LimitsTest, ADeletedAdapterLeavesNoTombstone) {
  for (const uint64_t number : {1, 2}) ASSERT_THAT(Publish(number), IsOk());
  ASSERT_THAT(catalog_->DeleteVersion(Key(1)), IsOk());
  EXPECT_EQ(catalog_->DeleteAdapter(policy_, true)->versions, 1u);
  EXPECT_THAT(*kv::ListAll(*kv_, "tombstone/"), IsEmpty());
}

TEST_F(LimitsTest, ItSaysThatItCanWrite) {
  ASSERT_THAT(catalog_->ProveWritable(), IsOk());
  EXPECT_EQ((*kv_->Get(keys::kProof))->value, absl::StrCat(now_ms_));
}

TEST_F(LimitsTest, AnAdaptersChangesAreAnnounced) {
  const uint64_t revision = *catalog_->Revision();
  ASSERT_THAT(SetPolicy({}), IsOk());
  ASSERT_THAT(catalog_->ArchiveAdapter(policy_, true), IsOk());
  ASSERT_THAT(catalog_->ArchiveAdapter(policy_, false), IsOk());
  EXPECT_THAT(LogAfter(revision),
              ElementsAre("adapter policy", "adapter policy", "adapter policy"));
}

TEST_F(LimitsTest, AFewOfTheHoldersOfAnAdapterAreNamed) {
  ASSERT_THAT(Publish(1), IsOk());
  for (const char* holder : {"a", "b", "c", "d", "e"}) {
    ASSERT_THAT(catalog_->SetHolds(holder, {1, 1}, {Key(1)}), IsOk());
  }
  const absl::Status refused = catalog_->DeleteAdapter(policy_, true).status();
  EXPECT_THAT(Text(refused), HasSubstr("d (policy r1.1);"));
  OpenRun(std::nullopt, "other");
  EXPECT_THAT(catalog_->DeleteAdapter(AdapterName("other"), false), IsOk()) << "others' holds";
}

TEST_F(LimitsTest, HoldsOfTheCurrentRunNeedNotNameIt) {
  for (const uint64_t number : {1, 2}) ASSERT_THAT(Publish(number), IsOk());
  const VersionKey newest{policy_, RunId(), VersionNumber(2)};
  ASSERT_THAT(catalog_->SetHolds("a", {1, 1}, {newest, Key(1), newest}), IsOk());
  EXPECT_THAT(*catalog_->HoldersOf(Key(2)), ElementsAre("a"));
  EXPECT_THAT(catalog_->SetHolds("a", {1, 1}, {Key(1), Key(2)}), IsOk()) << "the same again";
  EXPECT_THAT(
      catalog_->SetHolds("a", {1, 2}, std::vector<VersionKey>(fleet::kHeldVersionsMax, Key(1))),
      IsOk());
}

TEST_F(LimitsTest, AQuotaSaysWhatItCounts) {
  options_.total_bytes_max = 3500;
  Restart();
  ASSERT_THAT(Publish(1), IsOk());
  ASSERT_THAT(Begin(2), IsOk());
  OpenRun(std::nullopt, "other");
  ASSERT_THAT(BeginOther(1), IsOk());
  EXPECT_THAT(Text(BeginOther(2).status()),
              HasSubstr("3000 bytes in the store + 1000 of this image > its limit of 3500"));
  options_.total_bytes_max = 4000;
  Restart();
  EXPECT_THAT(BeginOther(2), IsOk()) << "to the last byte";
  options_.total_bytes_max = 0;
  options_.adapter_bytes_max = 2000;
  Restart();
  EXPECT_THAT(Text(BeginOther(3).status()),
              HasSubstr("2000 bytes of other + 1000 of this image > its quota of 2000"));
}

TEST_F(LimitsTest, AQuotaOfVersionsSaysSo) {
  ASSERT_THAT(SetPolicy({.quota_versions = 2}), IsOk());
  ASSERT_THAT(Publish(1), IsOk());
  ASSERT_THAT(Begin(2), IsOk());
  EXPECT_THAT(Text(Begin(3).status()), HasSubstr("2 versions of policy + 1 > its quota of 2"));
}

TEST_F(LimitsTest, WhatAnEarlierRunLeftIsRoom) {
  for (uint64_t number = 1; number <= 3; ++number) ASSERT_THAT(Publish(number), IsOk());
  OpenRun(Key(3));
  ASSERT_THAT(SetPolicy({.quota_bytes = 3000, .quota_versions = 3}), IsOk());
  BeginUploadArgs large = Args(4);
  large.image_bytes = 2000;
  ASSERT_THAT(catalog_->BeginUpload(large), IsOk());
  EXPECT_THAT(Stored(), ElementsAre(3)) << "the newest few stay of the current run only";
  EXPECT_EQ(evicted_, 2);
}

TEST_F(LimitsTest, AQuotaThatWasLoweredMakesRoomInSeveralTransactions) {
  options_.store_keep = 0;
  Restart();
  for (uint64_t number = 1; number <= 1'100; ++number) ASSERT_THAT(Publish(number), IsOk());
  ASSERT_THAT(SetPolicy({.quota_versions = 4}), IsOk());
  kv::RacingStore counting(*kv_);
  const auto catalog = Catalog::Open(counting, options_).value();
  catalog->SetObserver(this);
  EXPECT_THAT(catalog->BeginUpload(Args(1'101)), IsError("QUOTA_EXCEEDED"));
  EXPECT_EQ(evicted_, 0) << "versions leave for an upload alone";
  ASSERT_THAT(SetPolicy({.quota_versions = 5}), IsOk());
  ASSERT_THAT(catalog->BeginUpload(Args(1'101)), IsOk());
  EXPECT_THAT(Stored(), ElementsAre(1'100, 1'099, 1'098, 1'097));
  EXPECT_EQ(evicted_, 1'096);
  EXPECT_LT(counting.keys_max, 3'000u);
}

TEST_F(LimitsTest, EveryRankStatesTheSame) {
  const auto differing = [&](auto change) {
    BeginUploadArgs args = Args(7);
    change(args);
    return catalog_->BeginUpload(args);
  };
  const std::vector<std::function<void(BeginUploadArgs&)>> changes = {
      [](auto& args) { args.image_bytes = 1; }, [](auto& args) { args.header_bytes = 1; },
      [](auto& args) { args.config_json = "{ }"; },
      [](auto& args) { args.expected_digest = Digest{"sha256-xxh3:x"}; },
      [](auto& args) { args.keep = true; }};
  for (const auto& change : changes) {
    ASSERT_THAT(Begin(7), IsOk());
    EXPECT_THAT(differing(change), IsError("RANGE_CONFLICT"));
  }
}

TEST_F(LimitsTest, ATooOldNumberIsToldWhatItIsBelow) {
  ASSERT_THAT(Publish(80), IsOk());
  EXPECT_THAT(Text(Begin(79).status()), HasSubstr("is below the run's newest, 80;"));
  OpenRun(Key(80));
  EXPECT_THAT(Text(Begin(79).status()), HasSubstr("is below what the run went on from, 80;"));
}

TEST_F(LimitsTest, AnotherConfigIsOtherContent) {
  ASSERT_THAT(Publish(7), IsOk());
  BeginUploadArgs args = Args(7, 2);
  args.canonical_config = "{\"r\":8}";
  EXPECT_THAT(catalog_->BeginUpload(args), IsError("VERSION_CONFLICT"));
}

TEST_F(LimitsTest, TheNearestOfTheSameRunAreNamedFirst) {
  for (const uint64_t number : {1, 2, 5, 9}) ASSERT_THAT(Publish(number), IsOk());
  EXPECT_THAT(Text(catalog_->GetVersion(Key(3)).status()),
              HasSubstr("nearest: policy r1.2, policy r1.5, policy r1.1, policy r1.9"));
  OpenRun(Key(9));
  ASSERT_THAT(Publish(20), IsOk());
  EXPECT_THAT(Text(catalog_->GetVersion(Key(10)).status()),
              HasSubstr("nearest: policy r2.20, policy r1.9, policy r1.5, policy r1.2"));
  EXPECT_THAT(Text(catalog_->GetVersion(Key(3, 1)).status()), HasSubstr("nearest: policy r1.2"));
  EXPECT_THAT(Text(catalog_->GetVersion(Key(3, 1)).status()), Not(HasSubstr("r2.20")));
}

TEST_F(LimitsTest, ARequestIdIsAtMost64Bytes) {
  const auto open = [&](size_t bytes) {
    return catalog_->OpenRun({.adapter = policy_,
                              .resume_from = std::nullopt,
                              .expected_run = std::nullopt,
                              .request_id = std::string(bytes, 'x')});
  };
  EXPECT_THAT(open(kRequestIdBytesMax), IsOk());
  EXPECT_THAT(open(kRequestIdBytesMax + 1), IsError("ARGUMENT_INVALID"));
}

}  // namespace
}  // namespace lorry::store
