#include "lib/fleet/held.h"
#include "services/adapter_store/catalog/codec.h"
#include "tests/unit/adapter_store/catalog_dsl.h"

namespace lorry::store {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class VersionsTest : public CatalogTest {
 protected:
  VersionsTest() {
    OpenRun();
    for (const uint64_t number : {1, 2, 5}) EXPECT_THAT(Publish(number), IsOk());
  }
  absl::StatusOr<std::vector<VersionKey>> SetHolds(uint64_t revision, std::vector<VersionKey> keys,
                                                   const std::string& holder = "orchestrator:a") {
    return catalog_->SetHolds(holder, {1, revision}, std::move(keys));
  }
};

TEST_F(VersionsTest, AMissingVersionIsAnsweredWithTheNearest) {
  const auto missing = catalog_->GetVersion(Key(4));
  EXPECT_THAT(missing, IsError("UNKNOWN_VERSION"));
  EXPECT_THAT(std::string(missing.status().message()),
              HasSubstr("policy r1.4 is not stored; nearest: policy r1.5, policy r1.2"));
}

TEST_F(VersionsTest, VersionsAreListedNewestFirstInPages) {
  OpenRun(Key(5));
  ASSERT_THAT(Publish(6), IsOk());
  EXPECT_THAT(Stored(), ElementsAre(6, 5, 2, 1));
  const AdapterName policy("policy");
  const auto first = catalog_->ListVersions(policy, RunId(1), 2, "");
  ASSERT_EQ(first->versions.size(), 2u);
  const auto second = catalog_->ListVersions(policy, RunId(1), 2, first->next);
  ASSERT_EQ(second->versions.size(), 1u);
  EXPECT_EQ(second->versions[0].key.number.value, 1u);
  EXPECT_EQ(second->next, "");
  EXPECT_THAT(catalog_->ListVersions(policy, RunId(2), 2, first->next),
              IsError("ARGUMENT_INVALID"));
}

TEST_F(VersionsTest, ADeletedVersionIsGoneButItsNumberStaysTaken) {
  ASSERT_THAT(catalog_->DeleteVersion(Key(5)), IsOk());
  EXPECT_THAT(catalog_->DeleteVersion(Key(5)), IsOk());
  EXPECT_THAT(Stored(), ElementsAre(2, 1));
  const auto gone = catalog_->GetVersion(Key(5));
  EXPECT_THAT(std::string(gone.status().message()), HasSubstr("was deleted"));
  EXPECT_THAT(Publish(5), IsError("VERSION_CONFLICT"));
  EXPECT_THAT(Publish(4), IsError("VERSION_TOO_OLD"));
  EXPECT_THAT(LogAfter(4), ElementsAre("deleted policy r1.5"));
  EXPECT_EQ(catalog_->GetAdapter(AdapterName("policy"))->stored_bytes, 2000u);
  EXPECT_THAT(catalog_->DeleteVersion(Key(99)), IsError("UNKNOWN_VERSION"));
}

TEST_F(VersionsTest, ADeletedImageStaysUntilNoTicketCanNameIt) {
  const BlobKey blob = catalog_->GetVersion(Key(5))->blob;
  ASSERT_THAT(catalog_->DeleteVersion(Key(5)), IsOk());
  const std::vector<Blob> blobs = catalog_->ListBlobs().value();
  for (const Blob& each : blobs) {
    if (each.key != blob) continue;
    EXPECT_EQ(each.state, BlobState::kDeleting);
    EXPECT_EQ(each.remove_after_ms, now_ms_ + options_.ticket_life_ms);
  }
}

TEST_F(VersionsTest, WhatIsHeldIsNotDeletedAndTheHoldersAreNamed) {
  ASSERT_THAT(SetAlias("eval", Key(2)), IsOk());
  EXPECT_THAT(*SetHolds(1, {Key(2), Key(5)}), IsEmpty());
  const absl::Status refused = catalog_->DeleteVersion(Key(2));
  EXPECT_THAT(refused, IsError("IN_USE"));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("held by alias:eval, orchestrator:a"));
  EXPECT_THAT(*catalog_->HoldersOf(Key(2)), ElementsAre("alias:eval", "orchestrator:a"));
  ASSERT_THAT(SetAlias("eval", Key(1)), IsOk());
  ASSERT_THAT(SetHolds(2, {Key(5)}), IsOk());
  EXPECT_THAT(catalog_->DeleteVersion(Key(2)), IsOk());
}

TEST_F(VersionsTest, HoldingWhatIsGoingIsReportedAsMissing) {
  ASSERT_THAT(catalog_->DeleteVersion(Key(2)), IsOk());
  EXPECT_THAT(*SetHolds(1, {Key(5), Key(2), Key(77)}), ElementsAre(Key(2), Key(77)));
  EXPECT_THAT(*catalog_->HoldersOf(Key(2)), IsEmpty());
}

TEST_F(VersionsTest, OldHoldsDoNotComeBack) {
  ASSERT_THAT(SetHolds(7, {Key(5)}), IsOk());
  EXPECT_THAT(SetHolds(6, {Key(1)}), IsError("HOLDS_STALE"));
  EXPECT_THAT(SetHolds(7, {Key(1)}), IsError("HOLDS_STALE"));
  EXPECT_THAT(SetHolds(7, {Key(5)}), IsOk());  // a retry
  Restart();
  EXPECT_THAT(SetHolds(6, {}), IsError("HOLDS_STALE"));
  EXPECT_THAT(SetHolds(6, {}, "orchestrator:b"), IsOk());
  EXPECT_THAT(SetHolds(1, {}, "has/slash"), IsError("NAME_INVALID"));
  EXPECT_THAT(SetHolds(8, std::vector<VersionKey>(fleet::kHeldVersionsMax + 1, Key(1))),
              IsError("TOO_MANY_HOLDS"));
}

TEST_F(VersionsTest, AliasesMoveByCompareAndSwap) {
  EXPECT_EQ(SetAlias("best", Key(1), 0)->generation, 1u);
  EXPECT_THAT(SetAlias("best", Key(2), 0), IsError("ALIAS_MOVED"));
  EXPECT_EQ(SetAlias("best", Key(2), 1)->generation, 2u);
  EXPECT_THAT(SetAlias("best", Key(4)), IsError("UNKNOWN_VERSION"));
  EXPECT_EQ(SetAlias("best", Key(2))->generation, 2u);  // already there: nothing moves
}

// Clients repeat a call whose answer was lost.
TEST_F(VersionsTest, ARepeatedMoveOfAnAliasIsTheFirst) {
  EXPECT_EQ(SetAlias("best", Key(1), 0)->generation, 1u);
  EXPECT_EQ(SetAlias("best", Key(1), 0)->generation, 1u);
  EXPECT_EQ(SetAlias("best", Key(2), 1)->generation, 2u);
  EXPECT_EQ(SetAlias("best", Key(2), 1)->generation, 2u);
  EXPECT_THAT(SetAlias("best", Key(2), 0), IsError("ALIAS_MOVED")) << "two moves ago";
  EXPECT_THAT(SetAlias("best", std::nullopt, 2), IsOk());
  EXPECT_THAT(SetAlias("best", std::nullopt, 2), IsOk());
  EXPECT_THAT(LogAfter(4), ElementsAre("alias best", "alias best", "alias best"));
}

TEST_F(VersionsTest, AnAliasThatWasRemovedGoesOnCounting) {
  ASSERT_THAT(SetAlias("best", Key(1)), IsOk());
  EXPECT_EQ(SetAlias("best", std::nullopt, 1)->version, std::nullopt);
  EXPECT_THAT(*catalog_->ListAliases(AdapterName("policy")), IsEmpty());
  EXPECT_THAT(SetAlias("best", Key(1), 1), IsError("ALIAS_MOVED"));
  EXPECT_EQ(SetAlias("best", Key(1), 0)->generation, 3u);
  EXPECT_EQ(SetAlias("best", Key(1), 0)->generation, 3u) << "repeated, as its answer was lost";
  EXPECT_THAT(SetAlias("best", Key(2), 0), IsError("ALIAS_MOVED"));
  EXPECT_THAT(SetAlias("best", Key(1), 2), IsError("ALIAS_MOVED")) << "nobody saw that one";
  EXPECT_THAT(LogAfter(4), ElementsAre("alias best", "alias best", "alias best"));
}

TEST_F(VersionsTest, AnAliasMayNameAnotherRunsVersionButNotAnotherAdapters) {
  OpenRun(Key(5));
  EXPECT_EQ(SetAlias("old", Key(1, 1))->version, Key(1, 1));
  EXPECT_THAT(SetAlias("old", VersionKey{AdapterName("other"), RunId(1), VersionNumber(1)}),
              IsError("ARGUMENT_INVALID"));
}

TEST_F(VersionsTest, ThePictureIsWhatTheLogLeadsTo) {
  ASSERT_THAT(SetAlias("eval", Key(2)), IsOk());
  ASSERT_THAT(SetAlias("gone", Key(2)), IsOk());
  ASSERT_THAT(SetAlias("gone", std::nullopt), IsOk());
  const auto picture = catalog_->TakePicture();
  ASSERT_THAT(picture, IsOk());
  EXPECT_EQ(picture->revision, announced_);
  EXPECT_EQ(picture->adapters.size(), 1u);
  EXPECT_EQ(picture->versions.size(), 3u);
  ASSERT_EQ(picture->aliases.size(), 1u);
  EXPECT_EQ(picture->aliases[0].name.value, "eval");
  EXPECT_THAT(LogAfter(picture->revision), IsEmpty());
}

TEST_F(VersionsTest, ALogThatWasCompactedSaysSo) {
  options_.log_revisions_max = 2;
  Restart();
  ASSERT_EQ(*catalog_->Revision(), 4u);
  ASSERT_THAT(catalog_->Tidy(), IsOk());
  EXPECT_THAT(LogAfter(1), ElementsAre("REVISION_COMPACTED"));
  EXPECT_THAT(LogAfter(2), ElementsAre("stored policy r1.2", "stored policy r1.5"));
  EXPECT_THAT(LogAfter(5), ElementsAre("REVISION_COMPACTED"));  // of a store that lost its state
}

TEST_F(VersionsTest, LeavesOfAnySizeAreKept) {
  const BlobKey blob("b-x");
  const std::string leaves(3'000'000, 'l');
  ASSERT_THAT(catalog_->PutLeaves(blob, leaves), IsOk());
  EXPECT_EQ(*catalog_->GetLeaves(blob), leaves);
  ASSERT_THAT(catalog_->ForgetBlob(blob), IsOk());
  EXPECT_EQ(*catalog_->GetLeaves(blob), "");
}

TEST_F(VersionsTest, TotalsAreCounted) {
  ASSERT_THAT(Begin(9), IsOk());
  const auto totals = catalog_->Count();
  EXPECT_EQ(totals->versions, 3u);
  EXPECT_EQ(totals->stored_bytes, 3000u);
  EXPECT_EQ(totals->open_uploads, 1u);
  EXPECT_EQ(totals->open_bytes, 1000u);
}

TEST(Codec, WhatIsNoRecordIsDataLoss) {
  EXPECT_THAT(Decode<Version>("not json"), IsError("CATALOG_CORRUPT"));
  EXPECT_THAT(Decode<Version>("{}"), IsError("CATALOG_CORRUPT"));
  EXPECT_THAT(Decode<Alias>(R"({"adapter":1})"), IsError("CATALOG_CORRUPT"));
}

}  // namespace
}  // namespace lorry::store
