// Another process writes between a decision and its commit: the decision is taken again.
#include "services/adapter_store/catalog/keys.h"
#include "tests/unit/adapter_store/catalog_dsl.h"
#include "tests/unit/kv/racing_store.h"

namespace lorry::store {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class RacesTest : public CatalogTest {
 protected:
  RacesTest() {
    OpenRun();
    for (const uint64_t number : {1, 2, 5}) EXPECT_THAT(Publish(number), IsOk());
    Reopen();
  }
  void Reopen() {
    options_.now_unix_ms = [this] { return now_ms_; };
    racing_ = Catalog::Open(racing_store_, options_).value();
    racing_->SetObserver(this);
  }
  const AdapterName policy_ = AdapterName("policy");
  kv::RacingStore racing_store_{*kv_};
  std::unique_ptr<Catalog> racing_;  // the other process is catalog_
};

TEST_F(RacesTest, AHoldThatComesFirstKeepsTheVersion) {
  racing_store_.race = [&] { EXPECT_THAT(catalog_->SetHolds("a", {1, 1}, {Key(2)}), IsOk()); };
  EXPECT_THAT(racing_->DeleteVersion(Key(2)), IsError("IN_USE"));
  racing_store_.race = [&] { EXPECT_THAT(SetAlias("eval", Key(1)), IsOk()); };
  EXPECT_THAT(racing_->DeleteVersion(Key(1)), IsError("IN_USE"));
  racing_store_.race = [&] { EXPECT_THAT(catalog_->SetHolds("a", {1, 2}, {Key(5)}), IsOk()); };
  EXPECT_THAT(racing_->DeleteAdapter(policy_, true), IsError("IN_USE"));
}

TEST_F(RacesTest, AHoldThatComesFirstKeepsWhatAPublishWouldDrop) {
  options_.store_keep = 1;
  Reopen();
  const auto begun = racing_->BeginUpload(Args(6));
  ASSERT_THAT(begun, IsOk());
  racing_store_.race = [&] {
    EXPECT_THAT(catalog_->SetHolds("a", {1, 1}, {Key(2)}), IsOk());
    EXPECT_THAT(SetAlias("eval", Key(1)), IsOk());
  };
  ASSERT_THAT(racing_->StoreVersion(begun->upload.id, Image("six")), IsOk());
  EXPECT_THAT(Stored(), ElementsAre(6, 2, 1));
  const auto next = racing_->BeginUpload(Args(7));
  racing_store_.race = [&] { EXPECT_THAT(SetAlias("best", Key(6)), IsOk()); };
  ASSERT_THAT(racing_->StoreVersion(next->upload.id, Image("seven")), IsOk());
  EXPECT_THAT(Stored(), ElementsAre(7, 6, 2, 1));
}

TEST_F(RacesTest, AHolderThatComesFirstAloneKeepsItToo) {
  options_.store_keep = 1;
  Reopen();
  const auto begun = racing_->BeginUpload(Args(6));
  ASSERT_THAT(begun, IsOk());
  racing_store_.race = [&] { EXPECT_THAT(catalog_->SetHolds("a", {1, 1}, {Key(2)}), IsOk()); };
  ASSERT_THAT(racing_->StoreVersion(begun->upload.id, Image("six")), IsOk());
  EXPECT_THAT(Stored(), ElementsAre(6, 2));
}

TEST_F(RacesTest, WhatIsDecidedTwiceIsToldOnce) {
  const uint64_t revision = *catalog_->Revision();
  racing_store_.race = [&] { EXPECT_THAT(SetAlias("eval", Key(1)), IsOk()); };
  ASSERT_THAT(racing_->DeleteVersion(Key(2)), IsOk());
  EXPECT_THAT(LogAfter(revision), ElementsAre("alias eval", "deleted policy r1.2"));
  racing_store_.race = [&] { EXPECT_THAT(SetAlias("eval", std::nullopt), IsOk()); };
  EXPECT_EQ(racing_->DeleteAdapter(policy_, true)->versions, 2u);
}

TEST_F(RacesTest, TheSecondOfTwoRanksJoins) {
  std::optional<UploadId> first;
  racing_store_.race = [&] { first = Begin(7)->upload.id; };
  const auto begun = racing_->BeginUpload(Args(7));
  ASSERT_THAT(begun, IsOk());
  EXPECT_EQ(begun->upload.id, first);
  EXPECT_FALSE(begun->fresh);
}

TEST_F(RacesTest, AConflictThatIsOverMeanwhileIsNone) {
  const UploadId id = Begin(7)->upload.id;
  racing_store_.race = [&] {
    EXPECT_THAT(catalog_->EndUpload(id, Error(absl::StatusCode::kAborted, "X", "")), IsOk());
  };
  BeginUploadArgs other = Args(7);
  other.header_sha256 = "another header";
  EXPECT_THAT(racing_->BeginUpload(other), IsOk());
}

TEST_F(RacesTest, AnImageThatIsRightMeanwhileIsNoConflict) {
  const UploadId id = Begin(7)->upload.id;
  racing_store_.race = [&] { EXPECT_THAT(catalog_->StoreVersion(id, Image("seven")), IsOk()); };
  EXPECT_THAT(racing_->StoreVersion(id, Image("seven")), IsOk());
}

TEST_F(RacesTest, WhatIsMissingIsNamedOnce) {
  racing_store_.race = [&] { EXPECT_THAT(catalog_->SetHolds("b", {1, 1}, {Key(1)}), IsOk()); };
  EXPECT_THAT(*racing_->SetHolds("a", {1, 1}, {Key(99)}), ElementsAre(Key(99)));
}

TEST_F(RacesTest, ARunIsNotResumedFromWhatWentMeanwhile) {
  racing_store_.race = [&] { EXPECT_THAT(catalog_->DeleteVersion(Key(5)), IsOk()); };
  EXPECT_THAT(racing_->OpenRun({.adapter = policy_,
                                .resume_from = Key(5),
                                .expected_run = std::nullopt,
                                .request_id = ""}),
              IsError("UNKNOWN_VERSION"));
}

TEST_F(RacesTest, AFailedCommitIsPassedOn) {
  racing_store_.commits = 0;
  racing_store_.failure = Error(absl::StatusCode::kUnavailable, "STORE_FAILED", "the disk");
  EXPECT_THAT(racing_->DeleteVersion(Key(2)), IsError("STORE_FAILED"));
  EXPECT_EQ(racing_store_.commits, 1);
  racing_store_.failure = kv::ConditionFailed("key", 1, 2);
  EXPECT_THAT(racing_->DeleteVersion(Key(2)), IsError("CONDITION_FAILED"));
  EXPECT_EQ(racing_store_.commits, 11) << "ten tries";
  EXPECT_THAT(Stored(), ElementsAre(5, 2, 1));
}

TEST_F(RacesTest, ADecisionThatChangesNothingWritesNothing) {
  ASSERT_THAT(SetAlias("eval", Key(1)), IsOk());
  ASSERT_THAT(catalog_->SetHolds("a", {1, 1}, {Key(1)}), IsOk());
  racing_store_.commits = 0;
  announced_ = 999;
  EXPECT_THAT(racing_->SetAlias(policy_, AliasName("eval"), Key(1), std::nullopt), IsOk());
  EXPECT_THAT(racing_->SetHolds("a", {1, 1}, {Key(1), Key(1)}), IsOk());
  EXPECT_THAT(racing_->ArchiveAdapter(policy_, false), IsOk());
  EXPECT_EQ(racing_store_.commits, 0);
  EXPECT_THAT(racing_->SetHolds("a", {1, 2}, {}), IsOk());
  EXPECT_EQ(announced_, 999u) << "holds are nobody's news";
}

}  // namespace
}  // namespace lorry::store
