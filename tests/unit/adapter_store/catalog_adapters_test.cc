// The life of an adapter, and which of its versions stay.
#include "tests/unit/adapter_store/catalog_dsl.h"

namespace lorry::store {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class CatalogAdaptersTest : public CatalogTest {
 protected:
  const AdapterName name_{"policy"};

  void Keep(std::optional<uint32_t> store_keep) {
    Policy policy;
    policy.store_keep = store_keep;
    ASSERT_THAT(catalog_->SetAdapter(name_, policy, std::nullopt), IsOk());
  }
  void Hold(uint64_t revision, std::vector<VersionKey> versions) {
    ASSERT_THAT(catalog_->SetHolds("orchestrator:x", {1, revision}, std::move(versions)), IsOk());
  }
  absl::StatusOr<Version> PublishKept(uint64_t number, const Digest& expected = {}) {
    BeginUploadArgs args = Args(number);
    args.keep = true;
    args.expected_digest = expected;
    const auto begun = catalog_->BeginUpload(args);
    if (!begun.ok()) return begun.status();
    if (begun->stored.has_value()) return *begun->stored;
    return catalog_->StoreVersion(begun->upload.id, Image(absl::StrCat(number)));
  }
};

TEST_F(CatalogAdaptersTest, AnArchivedAdapterKeepsEverythingAndTakesNothing) {
  OpenRun();
  ASSERT_THAT(Publish(1), IsOk());
  const UploadId open = Begin(2)->upload.id;
  ASSERT_TRUE(catalog_->ArchiveAdapter(name_, true)->archived);
  ASSERT_THAT(catalog_->ArchiveAdapter(name_, true), IsOk());
  EXPECT_THAT(catalog_->GetUpload(open)->why, IsError("ADAPTER_ARCHIVED"));
  EXPECT_THAT(Begin(2), IsError("ADAPTER_ARCHIVED"));
  EXPECT_THAT(catalog_->OpenRun({.adapter = name_}), IsError("ADAPTER_ARCHIVED"));
  EXPECT_THAT(catalog_->GetVersion(Key(1)), IsOk());
  EXPECT_THAT(Stored(), ElementsAre(1));
  Restart();
  EXPECT_TRUE(catalog_->GetAdapter(name_)->archived);

  ASSERT_FALSE(catalog_->ArchiveAdapter(name_, false)->archived);
  EXPECT_THAT(Publish(2), IsOk());
}

TEST_F(CatalogAdaptersTest, OneWithoutVersionsIsDeletedAtOnce) {
  OpenRun();
  ASSERT_THAT(Begin(1), IsOk());
  const uint64_t before = *catalog_->Revision();
  ASSERT_THAT(catalog_->DeleteAdapter(name_, false), IsOk());
  EXPECT_THAT(LogAfter(before), ElementsAre("gone policy"));
  EXPECT_THAT(catalog_->GetAdapter(name_), IsError("UNKNOWN_ADAPTER"));
  EXPECT_THAT(catalog_->DeleteAdapter(name_, false), IsOk()) << "a call that is repeated";
  EXPECT_THAT(LogAfter(before), ElementsAre("gone policy")) << "once";
  EXPECT_THAT(catalog_->DeleteAdapter(AdapterName("misspelt"), false), IsError("UNKNOWN_ADAPTER"));
  EXPECT_THAT(catalog_->ListOpenUploads().value(), IsEmpty());
  EXPECT_THAT(catalog_->TakePicture()->adapters, IsEmpty());
}

TEST_F(CatalogAdaptersTest, VersionsGoOnlyWhenAllAreAskedFor) {
  OpenRun();
  for (const uint64_t number : {1, 2, 3}) ASSERT_THAT(Publish(number), IsOk());
  ASSERT_THAT(SetAlias("eval", Key(1)), IsOk());
  EXPECT_THAT(catalog_->DeleteAdapter(name_, false), IsError("ADAPTER_NOT_EMPTY"));
  const auto deleted = catalog_->DeleteAdapter(name_, true);
  ASSERT_THAT(deleted, IsOk());
  EXPECT_EQ(deleted->versions, 3u);
  EXPECT_EQ(deleted->bytes, 3000u);
  EXPECT_EQ(catalog_->Count()->versions, 0u);
  EXPECT_EQ(catalog_->Count()->stored_bytes, 0u);
  EXPECT_EQ(catalog_->ListDoomedBlobs()->size(), 3u);
  EXPECT_THAT(catalog_->TakePicture()->aliases, IsEmpty());
}

TEST_F(CatalogAdaptersTest, MoreVersionsThanOneTransactionDeletes) {
  options_.store_keep = 0;
  Restart();
  OpenRun();
  for (uint64_t number = 1; number <= 1'100; ++number) ASSERT_THAT(Publish(number), IsOk());
  EXPECT_EQ(catalog_->DeleteAdapter(name_, true)->versions, 1'100u);
  EXPECT_EQ(catalog_->Count()->versions, 0u);
}

TEST_F(CatalogAdaptersTest, WhatIsInUseIsToldByWhom) {
  OpenRun();
  ASSERT_THAT(Publish(1), IsOk());
  Hold(1, {Key(1)});
  const auto refused = catalog_->DeleteAdapter(name_, true);
  EXPECT_THAT(refused, IsError("IN_USE"));
  EXPECT_THAT(std::string(refused.status().message()),
              AllOf(HasSubstr("orchestrator:x"), HasSubstr("archive it")));
  EXPECT_THAT(Stored(), ElementsAre(1));
  Hold(2, {});
  EXPECT_THAT(catalog_->DeleteAdapter(name_, true), IsOk());
}

TEST_F(CatalogAdaptersTest, OneThatTakesTheNameGoesOnCounting) {
  OpenRun();
  OpenRun();
  ASSERT_THAT(Publish(1), IsOk());
  const uint64_t generation = catalog_->GetAdapter(name_)->generation;
  ASSERT_THAT(catalog_->DeleteAdapter(name_, true), IsOk());

  EXPECT_THAT(catalog_->SetAdapter(name_, {}, generation), IsError("ADAPTER_MOVED"));
  const auto again = catalog_->SetAdapter(name_, {}, 0);
  ASSERT_THAT(again, IsOk());
  EXPECT_EQ(again->generation, generation + 1);
  EXPECT_EQ(again->current_run.value, 0u);
  EXPECT_EQ(catalog_->SetAdapter(name_, {}, 0)->generation, generation + 1)
      << "repeated, as its answer was lost";
  EXPECT_THAT(catalog_->SetAdapter(name_, {}, generation), IsError("ADAPTER_MOVED"));
  EXPECT_THAT(catalog_->SetAdapter(name_, {.encoded = "x"}, 0), IsError("ADAPTER_MOVED"))
      << "it exists";
  EXPECT_EQ(OpenRun().value, 3u);
  EXPECT_THAT(Publish(1, "other bytes"), IsOk());
}

TEST_F(CatalogAdaptersTest, TheNewestStayAndWhatIsOlderLeavesWithEveryPublish) {
  options_.store_keep = 3;
  Restart();
  OpenRun();
  for (uint64_t number = 1; number <= 5; ++number) ASSERT_THAT(Publish(number), IsOk());
  EXPECT_THAT(Stored(), ElementsAre(5, 4, 3));
  EXPECT_EQ(evicted_, 2);
  EXPECT_THAT(catalog_->GetVersion(Key(2)), IsError("UNKNOWN_VERSION"));
  EXPECT_THAT(Begin(2), IsError("VERSION_CONFLICT")) << "a tombstone remembers it";
  OpenRun();
  ASSERT_THAT(Publish(6), IsOk());
  EXPECT_THAT(Stored(), ElementsAre(6, 5, 4)) << "runs count together";
}

// A training run publishes for days, and nobody looks at its disk.
TEST_F(CatalogAdaptersTest, WhatStaysIsBoundedWhereNobodySaysHowMuch) {
  OpenRun();
  for (uint64_t number = 1; number <= 40; ++number) ASSERT_THAT(Publish(number), IsOk());
  EXPECT_EQ(Stored().size(), 32u);
}

TEST_F(CatalogAdaptersTest, NamedHeldAndKeptOnesStay) {
  Keep(1);
  OpenRun();
  ASSERT_THAT(PublishKept(1), IsOk());
  ASSERT_THAT(Publish(2), IsOk());
  ASSERT_THAT(SetAlias("eval", Key(2)), IsOk());
  ASSERT_THAT(Publish(3), IsOk());
  Hold(1, {Key(2), Key(3)});
  ASSERT_THAT(Publish(4), IsOk());
  EXPECT_THAT(Stored(), ElementsAre(4, 3, 2, 1));
  const Retention retention = *catalog_->RetentionOf(*catalog_->GetAdapter(name_));
  EXPECT_EQ(retention.store_keep, 1u);
  EXPECT_EQ(retention.newest, 1u);
  EXPECT_EQ(retention.held, 1u);
  EXPECT_EQ(retention.aliased, 1u);
  EXPECT_EQ(retention.kept, 1u);
  EXPECT_EQ(retention.leaving, 0u);
  Hold(2, {});
  EXPECT_EQ(catalog_->RetentionOf(*catalog_->GetAdapter(name_))->leaving, 1u);
  ASSERT_THAT(Publish(5), IsOk());
  EXPECT_THAT(Stored(), ElementsAre(5, 2, 1));
}

// A trainer writes a checkpoint of what it has published already. Its bytes are known by the digest
// that it states, or by sending them again.
TEST_F(CatalogAdaptersTest, OneThatIsStoredMayBeKeptLater) {
  Keep(1);
  OpenRun();
  uint64_t number = 0;
  for (const Digest& expected : {Image("1").digest, Digest()}) {
    ++number;
    ASSERT_THAT(Publish(number, absl::StrCat(number)), IsOk());
    const uint64_t before = *catalog_->Revision();
    for (int times = 0; times < 2; ++times) {
      const auto again = PublishKept(number, expected);
      ASSERT_THAT(again, IsOk());
      EXPECT_TRUE(again->keep);
    }
    EXPECT_THAT(LogAfter(before), ElementsAre(absl::StrCat("stored policy r1.", number))) << "once";
    ASSERT_THAT(Publish(number, absl::StrCat(number)), IsOk());
    EXPECT_TRUE(catalog_->GetVersion(Key(number))->keep) << "nobody lets it go by the way";
  }
  ASSERT_THAT(Publish(++number), IsOk());
  EXPECT_THAT(Stored(), ElementsAre(3, 2, 1));
}

TEST_F(CatalogAdaptersTest, APolicyMayKeepAll) {
  options_.store_keep = 1;
  Restart();
  Keep(0);
  OpenRun();
  for (uint64_t number = 1; number <= 5; ++number) ASSERT_THAT(Publish(number), IsOk());
  EXPECT_EQ(Stored().size(), 5u);
  Keep(2);
  ASSERT_THAT(Publish(6), IsOk());
  EXPECT_THAT(Stored(), ElementsAre(6, 5)) << "a bound that comes later holds for what is there";
}

TEST_F(CatalogAdaptersTest, AKeptVersionIsNoRoomForAQuotaEither) {
  Policy policy;
  policy.quota_versions = 1;
  ASSERT_THAT(catalog_->SetAdapter(name_, policy, std::nullopt), IsOk());
  OpenRun();
  ASSERT_THAT(PublishKept(1), IsOk());
  OpenRun();
  EXPECT_THAT(Begin(2), IsError("QUOTA_EXCEEDED"));
}

TEST_F(CatalogAdaptersTest, ARunAndItsUploadsBelongToWhoOpenedIt) {
  const Principal alice{.name = "alice"}, bob{.name = "bob"};
  const Principal root{.name = "root", .is_operator = true};
  ASSERT_THAT(catalog_->OpenRun({.adapter = name_, .request_id = "once", .principal = alice}),
              IsOk());
  EXPECT_THAT(catalog_->OpenRun({.adapter = name_, .request_id = "once", .principal = bob}),
              IsError("NOT_OWNER"));
  run_ = 1;
  BeginUploadArgs args = Args(1);
  args.principal = bob;
  EXPECT_THAT(catalog_->BeginUpload(args), IsError("NOT_OWNER"));
  args.principal = alice;
  const auto upload = catalog_->BeginUpload(args);
  ASSERT_THAT(upload, IsOk());
  EXPECT_EQ(upload->upload.owner, "alice");
  args.principal = bob;
  args.attempt = 2;
  EXPECT_THAT(catalog_->BeginUpload(args), IsError("NOT_OWNER")) << "nor fences it";
  args.principal = root;
  EXPECT_EQ(catalog_->BeginUpload(args)->upload.owner, "alice") << "an operator acts for the owner";
  Restart();
  EXPECT_EQ(catalog_->ListRuns(name_)->front().owner, "alice");
}

TEST_F(CatalogAdaptersTest, UploadIdsCannotBeGuessed) {
  OpenRun();
  const std::string first = Begin(1)->upload.id.value, second = Begin(2)->upload.id.value;
  EXPECT_EQ(first.size(), 2 + 32u);
  EXPECT_NE(first.substr(0, 10), second.substr(0, 10));
}

}  // namespace
}  // namespace lorry::store
