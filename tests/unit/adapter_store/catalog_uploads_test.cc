#include "services/adapter_store/catalog/keys.h"
#include "tests/unit/adapter_store/catalog_dsl.h"

namespace lorry::store {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class UploadsCatalogTest : public CatalogTest {
 protected:
  UploadsCatalogTest() { OpenRun(); }
  std::string StateOf(const UploadId& id) {
    const auto upload = catalog_->GetUpload(id);
    if (!upload.ok()) return ReasonOf(upload.status());
    switch (upload->state) {
      case UploadState::kOpen:
        return "OPEN";
      case UploadState::kStored:
        return "STORED";
      case UploadState::kDead:
        return "DEAD " + ReasonOf(upload->why);
    }
    return "";
  }
  std::vector<std::string> Blobs() {
    std::vector<std::string> states;
    const std::vector<Blob> blobs = catalog_->ListBlobs().value();
    for (const Blob& blob : blobs) {
      states.push_back(blob.state == BlobState::kStaged ? "STAGED"
                       : blob.state == BlobState::kLive ? "LIVE"
                                                        : "DELETING");
    }
    return states;
  }
  // Writes the entry; returns what it was.
  std::string Write(const std::string& key, const std::string& value) {
    const std::string before = kv_->Get(key).value()->value;
    EXPECT_THAT(kv_->Commit(kv::Transaction().Put(key, value)), IsOk());
    return before;
  }
  absl::Status SetQuota(uint64_t bytes, uint32_t versions = 0) {
    Policy policy;
    policy.quota_bytes = bytes;
    policy.quota_versions = versions;
    return catalog_->SetAdapter(AdapterName("policy"), policy, std::nullopt).status();
  }
};

TEST_F(UploadsCatalogTest, AnUploadBecomesAVersion) {
  const auto begun = Begin(7);
  ASSERT_THAT(begun, IsOk());
  EXPECT_TRUE(begun->fresh);
  EXPECT_THAT(Blobs(), ElementsAre("STAGED"));
  EXPECT_THAT(Stored(), IsEmpty());

  const auto version = catalog_->StoreVersion(begun->upload.id, Image("seven"));
  ASSERT_THAT(version, IsOk());
  EXPECT_EQ(version->revision, announced_);
  EXPECT_EQ(StateOf(begun->upload.id), "STORED");
  EXPECT_THAT(Blobs(), ElementsAre("LIVE"));
  Restart();
  EXPECT_EQ(*catalog_->GetVersion(Key(7)), *version);
  EXPECT_EQ(catalog_->GetAdapter(AdapterName("policy"))->stored_bytes, 1000u);
}

TEST_F(UploadsCatalogTest, RanksOfOneAttemptJoinOneUpload) {
  const UploadId first = Begin(7)->upload.id;
  const auto second = Begin(7);
  EXPECT_EQ(second->upload.id, first);
  EXPECT_FALSE(second->fresh);
}

TEST_F(UploadsCatalogTest, RanksThatDisagreeEndTheUpload) {
  const UploadId id = Begin(7)->upload.id;
  BeginUploadArgs other = Args(7);
  other.header_sha256 = "another header";
  EXPECT_THAT(catalog_->BeginUpload(other), IsError("RANGE_CONFLICT"));
  EXPECT_EQ(StateOf(id), "DEAD RANGE_CONFLICT");
  EXPECT_THAT(catalog_->StoreVersion(id, Image("x")), IsError("RANGE_CONFLICT"));
  EXPECT_THAT(ended_, ElementsAre(id));
}

TEST_F(UploadsCatalogTest, ANewerAttemptEndsTheOlderAndItIsNotLetBackIn) {
  const UploadId old = Begin(7, 1)->upload.id;
  const auto fresh = Begin(7, 2);
  ASSERT_THAT(fresh, IsOk());
  EXPECT_NE(fresh->upload.blob, catalog_->GetUpload(old)->blob);
  EXPECT_EQ(StateOf(old), "DEAD ATTEMPT_FENCED");
  EXPECT_THAT(Begin(7, 1), IsError("ATTEMPT_FENCED"));
  EXPECT_THAT(catalog_->StoreVersion(old, Image("x")), IsError("ATTEMPT_FENCED"));
  Restart();
  EXPECT_THAT(Begin(7, 1), IsError("ATTEMPT_FENCED"));
  EXPECT_EQ(Begin(7, 2)->upload.id, fresh->upload.id);
}

TEST_F(UploadsCatalogTest, TheSameContentAgainIsSuccess) {
  const auto stored = Publish(7, "seven");
  ASSERT_THAT(stored, IsOk());
  EXPECT_EQ(Begin(7)->stored, *stored);  // a late rank of the same attempt

  BeginUploadArgs known = Args(7, 2);
  known.expected_digest = stored->digest;
  EXPECT_EQ(catalog_->BeginUpload(known)->stored, *stored);

  const auto unknown = Begin(7, 3);  // only the bytes can tell
  EXPECT_EQ(unknown->stored, std::nullopt);
  EXPECT_EQ(*catalog_->StoreVersion(unknown->upload.id, Image("seven")), *stored);
  EXPECT_THAT(Blobs(), ElementsAre("LIVE", "DELETING"));
  EXPECT_THAT(LogAfter(0), ElementsAre("adapter policy", "stored policy r1.7"));
}

TEST_F(UploadsCatalogTest, OtherContentForAStoredVersionIsAConflict) {
  ASSERT_THAT(Publish(7, "seven"), IsOk());
  BeginUploadArgs args = Args(7, 2);
  args.expected_digest = Digest{"sha256-xxh3:else"};
  EXPECT_THAT(catalog_->BeginUpload(args), IsError("VERSION_CONFLICT"));
  args = Args(7, 2);
  args.image_bytes = 1001;
  EXPECT_THAT(catalog_->BeginUpload(args), IsError("VERSION_CONFLICT"));
  const auto begun = Begin(7, 2);
  EXPECT_THAT(catalog_->StoreVersion(begun->upload.id, Image("else")), IsError("VERSION_CONFLICT"));
  EXPECT_EQ(catalog_->GetVersion(Key(7))->digest, Image("seven").digest);
}

TEST_F(UploadsCatalogTest, NumbersNeverGoBackWithinARun) {
  ASSERT_THAT(Publish(7), IsOk());
  EXPECT_THAT(Begin(6), IsError("VERSION_TOO_OLD"));
  EXPECT_THAT(Publish(12), IsOk());  // they may skip
}

TEST_F(UploadsCatalogTest, OfTwoOpenUploadsTheOlderNumberLosesOnceTheNewerIsStored) {
  const auto seven = Begin(7), eight = Begin(8);
  ASSERT_THAT(catalog_->StoreVersion(eight->upload.id, Image("eight")), IsOk());
  EXPECT_THAT(catalog_->StoreVersion(seven->upload.id, Image("seven")), IsError("VERSION_TOO_OLD"));
  EXPECT_EQ(StateOf(seven->upload.id), "DEAD VERSION_TOO_OLD");
}

TEST_F(UploadsCatalogTest, TheAnnouncedDigestMustBeTheRealOne) {
  BeginUploadArgs args = Args(7);
  args.expected_digest = Digest{"sha256-xxh3:announced"};
  const auto begun = catalog_->BeginUpload(args);
  EXPECT_THAT(catalog_->StoreVersion(begun->upload.id, Image("real")), IsError("DIGEST_MISMATCH"));
  EXPECT_THAT(Stored(), IsEmpty());
}

TEST_F(UploadsCatalogTest, EndingIsIdempotentAndTheFirstReasonStays) {
  const UploadId id = Begin(7)->upload.id;
  const auto dead = [](std::string_view why) {
    return Error(absl::StatusCode::kAborted, why, "ended");
  };
  EXPECT_THAT(catalog_->EndUpload(id, dead("FIRST")), IsOk());
  EXPECT_THAT(catalog_->EndUpload(id, dead("SECOND")), IsOk());
  EXPECT_EQ(StateOf(id), "DEAD FIRST");
  EXPECT_THAT(catalog_->EndUpload(UploadId("u-none"), dead("X")), IsError("UNKNOWN_UPLOAD"));
  EXPECT_NE(Begin(7)->upload.id, id);  // the same attempt may begin anew
}

TEST_F(UploadsCatalogTest, AnEngineNameNeverMeansTwoContents) {
  options_.engine_name = [](const VersionKey& key, const Digest&, fleet::Render render) {
    return EngineName(absl::StrCat(key.adapter.value, "-v", key.number.value, "-",
                                   render == fleet::Render::kPlain ? "plain" : "folded"));
  };
  Restart();
  ASSERT_THAT(Publish(7, "one content"), IsOk());
  OpenRun();
  EXPECT_THAT(Publish(7, "another"), IsError("ENGINE_NAME_COLLISION"));
  EXPECT_THAT(Publish(7, "one content"), IsOk());  // the same content is no collision
}

TEST_F(UploadsCatalogTest, AQuotaWithoutAnythingToGiveUpRefuses) {
  ASSERT_THAT(SetQuota(2500), IsOk());
  ASSERT_THAT(Publish(1), IsOk());
  ASSERT_THAT(Begin(2), IsOk());  // open uploads count with their full length
  const auto third = Begin(3);
  EXPECT_THAT(third, IsError("QUOTA_EXCEEDED"));
  EXPECT_THAT(std::string(third.status().message()),
              HasSubstr("2000 bytes of policy + 1000 of this image > its quota of 2500"));
}

TEST_F(UploadsCatalogTest, AQuotaTakesTheOldestThatNobodyHolds) {
  for (uint64_t number = 1; number <= 7; ++number) ASSERT_THAT(Publish(number), IsOk());
  ASSERT_THAT(SetAlias("eval", Key(1)), IsOk());
  ASSERT_THAT(SetQuota(7000), IsOk());
  ASSERT_THAT(Publish(8), IsOk());
  EXPECT_THAT(Stored(), ElementsAre(8, 7, 6, 5, 4, 3, 1));
  ASSERT_THAT(SetQuota(6000), IsOk());
  ASSERT_THAT(Publish(9), IsOk());
  EXPECT_THAT(Stored(), ElementsAre(9, 8, 7, 6, 5, 1));  // 3 and 4 went
}

TEST_F(UploadsCatalogTest, AQuotaOfVersionsCountsOpenUploads) {
  ASSERT_THAT(SetQuota(0, 2), IsOk());
  ASSERT_THAT(Publish(1), IsOk());
  ASSERT_THAT(Begin(2), IsOk());
  EXPECT_THAT(Begin(3), IsError("QUOTA_EXCEEDED"));
}

TEST_F(UploadsCatalogTest, TheStoresOwnLimitCountsAllAdapters) {
  options_.total_bytes_max = 1500;
  Restart();
  ASSERT_THAT(Publish(1), IsOk());
  OpenRun(std::nullopt, "other");
  BeginUploadArgs args = Args(1);
  args.key.adapter = AdapterName("other");
  EXPECT_THAT(catalog_->BeginUpload(args), IsError("QUOTA_EXCEEDED"));
}

TEST_F(UploadsCatalogTest, AFencedAttemptGivesItsRoomToTheNextOne) {
  ASSERT_THAT(SetQuota(1000), IsOk());
  ASSERT_THAT(Begin(1, 1), IsOk());
  EXPECT_THAT(Begin(1, 2), IsOk());
}

TEST_F(UploadsCatalogTest, WhatIsStoredMayBeSentAgainThoughSomethingNewerIs) {
  for (const uint64_t number : {1, 5}) ASSERT_THAT(Publish(number), IsOk());
  EXPECT_THAT(Begin(1, 2), IsOk()) << "its bytes will tell whether it is the same";
  EXPECT_THAT(Begin(2, 2), IsError("VERSION_TOO_OLD"));
}

TEST_F(UploadsCatalogTest, OpenUploadsAreBounded) {
  for (uint64_t number = 0; number < kOpenUploadsMax; ++number) {
    ASSERT_THAT(Begin(number), IsOk());
  }
  EXPECT_THAT(Begin(kOpenUploadsMax), IsError("TOO_MANY_UPLOADS"));
}

TEST_F(UploadsCatalogTest, APublisherLeavesRoomForOthersUploads) {
  const auto begin = [&](const std::string& who, uint64_t number) {
    BeginUploadArgs args = Args(number);
    args.key.adapter = AdapterName(absl::StrCat("of ", who));
    args.principal.name = who;
    return catalog_->BeginUpload(args).status();
  };
  for (const std::string who : {"alice", "bob"}) {
    const AdapterName adapter(absl::StrCat("of ", who));
    ASSERT_THAT(catalog_->SetAdapter(adapter, {}, std::nullopt), IsOk());
    ASSERT_THAT(catalog_->OpenRun({.adapter = adapter,
                                   .resume_from = std::nullopt,
                                   .expected_run = std::nullopt,
                                   .request_id = "",
                                   .principal = {.name = who}}),
                IsOk());
  }
  for (uint64_t number = 0; number < kOpenUploadsMax / 2; ++number) {
    ASSERT_THAT(begin("alice", number), IsOk());
  }
  const absl::Status refused = begin("alice", kOpenUploadsMax / 2);
  EXPECT_THAT(refused, IsError("TOO_MANY_UPLOADS"));
  EXPECT_THAT(refused.message(), HasSubstr("128 of alice"));
  EXPECT_THAT(begin("bob", 1), IsOk());
}

TEST_F(UploadsCatalogTest, DeadUploadsAreForgottenLater) {
  now_ms_ = 10 * options_.dead_upload_kept_ms;
  const UploadId id = Begin(7)->upload.id;
  ASSERT_THAT(catalog_->EndUpload(id, Error(absl::StatusCode::kAborted, "X", "")), IsOk());
  ASSERT_THAT(catalog_->Tidy(), IsOk());
  EXPECT_EQ(StateOf(id), "DEAD X");
  now_ms_ += options_.dead_upload_kept_ms;
  ASSERT_THAT(catalog_->Tidy(), IsOk());
  EXPECT_EQ(StateOf(id), "UNKNOWN_UPLOAD");
}

TEST_F(UploadsCatalogTest, AnUnknownAdapterOrRunIsNamed) {
  run_ = 9;
  EXPECT_THAT(Begin(1), IsError("UNKNOWN_RUN"));
  BeginUploadArgs args = Args(1);
  args.key.adapter = AdapterName("nobody");
  EXPECT_THAT(catalog_->BeginUpload(args), IsError("UNKNOWN_ADAPTER"));
}

// The publish had written half of what it writes when the record of an old version could not be
// read.
TEST_F(UploadsCatalogTest, APublishThatFailsHalfWayLeavesNothing) {
  options_.store_keep = 1;
  Restart();
  ASSERT_THAT(Publish(1), IsOk());
  const UploadId id = Begin(2)->upload.id;
  const uint64_t announced = announced_;
  const std::string good = Write(keys::OfVersion(Key(1)), "no record");
  EXPECT_THAT(catalog_->StoreVersion(id, Image("two")), IsError("CATALOG_CORRUPT"));
  Write(keys::OfVersion(Key(1)), good);
  EXPECT_THAT(Stored(), ElementsAre(1));
  EXPECT_EQ(announced_, announced);
  EXPECT_EQ(StateOf(id), "OPEN");
  EXPECT_THAT(catalog_->StoreVersion(id, Image("two")), IsOk());
  EXPECT_THAT(Stored(), ElementsAre(2));
}

TEST_F(UploadsCatalogTest, AFenceThatFailsHalfWayLeavesTheUploadOpen) {
  const Upload upload = Begin(1)->upload;
  const std::string good = Write(keys::OfBlob(upload.blob), "no record");
  EXPECT_THAT(Begin(1, /*attempt=*/2), IsError("CATALOG_CORRUPT"));
  Write(keys::OfBlob(upload.blob), good);
  EXPECT_EQ(StateOf(upload.id), "OPEN");
  EXPECT_THAT(Begin(1, /*attempt=*/2), IsOk());
  EXPECT_THAT(ended_, ElementsAre(upload.id));
}

}  // namespace
}  // namespace lorry::store
