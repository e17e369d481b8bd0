// Garbage: what goes, when, and what stays whatever happens.
#include "services/adapter_store/catalog/keys.h"
#include "tests/unit/adapter_store/images_dsl.h"

namespace lorry::store {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

class CollectorTest : public ImagesTest {
 protected:
  const TestAdapter adapter_ = MakeAdapter(7);
};

TEST_F(CollectorTest, GarbageIsCollectedAndNothingElse) {
  ASSERT_THAT(PublishImage(7, adapter_), IsOk());
  const UploadId dead = BeginImage(8, adapter_)->upload.id;
  const UploadId open = BeginImage(9, adapter_)->upload.id;
  ASSERT_THAT(blobs_->Create("b-" + catalog_->instance() + "-99", 100), IsOk());
  ASSERT_THAT(uploads_->Abort(dead), IsOk());
  EXPECT_EQ(Files(), 4u);
  EXPECT_EQ(*collector_->Run(), 2);
  EXPECT_EQ(Files(), 2u);
  ASSERT_THAT(SendRest(open, adapter_), IsOk());
  EXPECT_THAT(Commit(open), IsOk());
  EXPECT_EQ(*collector_->Run(), 0);
}

// A sweep costs what is being deleted, and not what is stored.
TEST_F(CollectorTest, FilesAreListedOnceAndNotWithEverySweep) {
  ASSERT_THAT(collector_->Run(), IsOk());
  failing_.Fail(blob::BlobOp::kList, absl::InternalError("listed again"));
  ASSERT_THAT(PublishImage(7, adapter_), IsOk());
  ASSERT_THAT(uploads_->Abort(BeginImage(8, adapter_)->upload.id), IsOk());
  EXPECT_THAT(collector_->Run(), IsOk());
  failing_.Heal();
  EXPECT_EQ(Files(), 1u);
  EXPECT_THAT(catalog_->ListDoomedBlobs().value(), IsEmpty());
}

TEST_F(CollectorTest, ADeletedImageCanBeReadUntilItsTicketsAreOver) {
  const auto version = PublishImage(7, adapter_);
  ASSERT_THAT(catalog_->DeleteVersion(Key(7)), IsOk());
  EXPECT_EQ(*collector_->Run(), 0);
  EXPECT_THAT(blobs_->Open(version->blob.value), IsOk());
  now_ms_ += options_.ticket_life_ms;
  EXPECT_EQ(*collector_->Run(), 1);
  EXPECT_FALSE(blobs_->Open(version->blob.value).ok());
  EXPECT_THAT(catalog_->ListBlobs().value(), IsEmpty());
}

// The store's first versions kept no index of what is being deleted.
TEST_F(CollectorTest, WhatWasDoomedBeforeThereWasAnIndexGoesToo) {
  const UploadId dead = BeginImage(8, adapter_)->upload.id;
  ASSERT_THAT(uploads_->Abort(dead), IsOk());
  const std::vector<kv::Entry> index = kv::ListAll(*kv_, keys::kDoomed).value();
  for (const kv::Entry& entry : index) {
    ASSERT_THAT(kv_->Commit(kv::Transaction().Delete(entry.key)), IsOk());
  }
  ASSERT_THAT(catalog_->ListDoomedBlobs().value(), IsEmpty());
  RestartAll();
  EXPECT_EQ(*collector_->Run(), 1);
  EXPECT_EQ(Files(), 0u);
  EXPECT_THAT(catalog_->ListBlobs().value(), IsEmpty());
}

TEST_F(CollectorTest, FilesThatCannotBeDeletedKeepNoOther) {
  for (const uint64_t number : {8, 9}) {
    ASSERT_THAT(uploads_->Abort(BeginImage(number, adapter_)->upload.id), IsOk());
  }
  const std::string orphan = "b-" + catalog_->instance() + "-99";
  ASSERT_THAT(blobs_->Create(orphan, 100), IsOk());
  int deletes = 0;
  failing_.During(blob::BlobOp::kDelete, [&] {
    return ++deletes > 2 ? absl::OkStatus()
                         : Error(absl::StatusCode::kUnavailable, "DISK_FAILED", "as planned");
  });
  const absl::Status failed = collector_->Run().status();
  EXPECT_THAT(failed, IsError("DISK_FAILED"));
  EXPECT_THAT(std::string(failed.message()), HasSubstr(orphan));
  EXPECT_EQ(Files(), 2u);
  EXPECT_EQ(*collector_->Run(), 2);
  EXPECT_THAT(catalog_->ListBlobs().value(), IsEmpty());
}

TEST_F(CollectorTest, AClockThatRanAheadKeepsNothing) {
  ASSERT_THAT(PublishImage(7, adapter_), IsOk());
  constexpr int64_t kAhead = 1'000'000'000;
  now_ms_ += kAhead;
  ASSERT_THAT(catalog_->DeleteVersion(Key(7)), IsOk());
  now_ms_ -= kAhead;
  EXPECT_EQ(*collector_->Run(), 0) << "somebody may read it";
  now_ms_ += options_.ticket_life_ms - 1;
  EXPECT_EQ(*collector_->Run(), 0);
  now_ms_ += 1;
  EXPECT_EQ(*collector_->Run(), 1);
}

TEST_F(CollectorTest, AConnectionThatStillWritesPutsCollectingOff) {
  const UploadId id = BeginImage(7, adapter_)->upload.id;
  {
    const auto target = *uploads_->TargetOf(id);
    ASSERT_THAT(uploads_->Abort(id), IsOk());
    EXPECT_EQ(*collector_->Run(), 0);
  }
  EXPECT_EQ(*collector_->Run(), 1);
}

// The catalogue was lost or moved away, and its images are all that is left.
TEST_F(CollectorTest, ImagesOfAnotherCatalogueStay) {
  const auto version = PublishImage(7, adapter_);
  ASSERT_THAT(version, IsOk());
  const std::unique_ptr<kv::Store> lost = std::exchange(kv_, kv::MakeMemoryStore());
  RestartAll();
  EXPECT_EQ(*collector_->Run(), 0);
  EXPECT_THAT(blobs_->Open(version->blob.value), IsOk());
}

}  // namespace
}  // namespace lorry::store
