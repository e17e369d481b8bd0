#include <future>
#include <latch>

#include "lib/transfer/transport_set.h"
#include "tests/testing/refusing_kv.h"
#include "tests/unit/adapter_store/images_dsl.h"

namespace lorry::store {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class UploadsTest : public ImagesTest {
 protected:
  // As ranks see it: from the middle of the data to its end.
  static transfer::Range SecondHalf(const TestAdapter& adapter) {
    const uint64_t half = adapter.image.size() / 2;
    return {.offset = half, .length = adapter.image.size() - half};
  }
  static transfer::Range FirstHalf(const TestAdapter& adapter) {
    return {.offset = adapter.header_bytes,
            .length = adapter.image.size() / 2 - adapter.header_bytes};
  }
  // The upload's file is sealed, and no record says so.
  UploadId FailAfterTheSeal() {
    const UploadId id = BeginImage(7, adapter_)->upload.id;
    EXPECT_THAT(SendRest(id, adapter_), IsOk());
    failing_.Fail(blob::BlobOp::kOpen, absl::UnavailableError("no descriptor is left"));
    EXPECT_TRUE(absl::IsUnavailable(Commit(id).status()));
    failing_.Heal();
    return id;
  }
  UploadId CrashAfterTheSeal() {
    const UploadId id = FailAfterTheSeal();
    RestartAll();
    return id;
  }
  const TestAdapter adapter_ = MakeAdapter(7);
};

TEST_F(UploadsTest, AnImageBecomesAVersionWithItsDigest) {
  const auto version = PublishImage(7, adapter_);
  ASSERT_THAT(version, IsOk());
  EXPECT_EQ(version->digest, DigestOf(adapter_.bytes(), adapter_.config));
  EXPECT_EQ(version->traits.rank_max, kTestRank);
  EXPECT_THAT(version->traits.modules, ElementsAre("k_proj", "q_proj", "v_proj"));
  EXPECT_FALSE(version->traits.all_b_zero);
}

TEST_F(UploadsTest, RanksSendTheirSlicesAndAnyCommits) {
  const UploadId id = BeginImage(7, adapter_)->upload.id;
  EXPECT_EQ(BeginImage(7, adapter_)->upload.id, id);
  ASSERT_THAT(Send(id, adapter_, SecondHalf(adapter_)), IsOk());
  const auto early = Commit(id);
  EXPECT_THAT(early, IsError("RANGES_MISSING"));
  EXPECT_THAT(std::string(early.status().message()), HasSubstr("in 1 ranges"));
  ASSERT_THAT(Send(id, adapter_, FirstHalf(adapter_)), IsOk());
  const auto first = Commit(id);
  ASSERT_THAT(first, IsOk());
  EXPECT_EQ(*Commit(id), *first);
  EXPECT_EQ(BeginImage(7, adapter_)->stored, *first);
}

TEST_F(UploadsTest, TheSameRangeAgainIsANoOpAndOtherBytesEndTheUpload) {
  const UploadId id = BeginImage(7, adapter_)->upload.id;
  ASSERT_THAT(Send(id, adapter_, SecondHalf(adapter_)), IsOk());
  ASSERT_THAT(Send(id, adapter_, SecondHalf(adapter_)), IsOk());
  TestAdapter other = adapter_;
  other.image.back() ^= 1;
  EXPECT_THAT(Send(id, other, SecondHalf(other)), IsError("RANGE_CONFLICT"));
  EXPECT_THAT(Commit(id), IsError("RANGE_CONFLICT"));
  EXPECT_EQ(StateOf(id), "DEAD RANGE_CONFLICT");
  EXPECT_THAT(Send(id, adapter_, FirstHalf(adapter_)), IsError("RANGE_CONFLICT"));
  EXPECT_THAT(PublishImage(7, adapter_), IsOk());
}

TEST_F(UploadsTest, ANewerAttemptDropsTheRangesOfTheOlder) {
  const UploadId old = BeginImage(7, adapter_, 1)->upload.id;
  ASSERT_THAT(Send(old, adapter_, SecondHalf(adapter_)), IsOk());
  const auto fresh = BeginImage(7, adapter_, 2);
  ASSERT_THAT(fresh, IsOk());
  EXPECT_THAT(fresh->missing,
              ElementsAre(transfer::Range{adapter_.header_bytes,
                                          adapter_.image.size() - adapter_.header_bytes}));
  EXPECT_THAT(Send(old, adapter_, FirstHalf(adapter_)), IsError("ATTEMPT_FENCED"));
  EXPECT_THAT(Commit(old), IsError("ATTEMPT_FENCED"));
}

TEST_F(UploadsTest, ANewRunEndsTheOpenUploads) {
  const UploadId id = BeginImage(7, adapter_)->upload.id;
  OpenRun();
  EXPECT_THAT(Send(id, adapter_, SecondHalf(adapter_)), IsError("RUN_FENCED"));
  EXPECT_THAT(Commit(id), IsError("RUN_FENCED"));
}

TEST_F(UploadsTest, AnIdleUploadDiesAndAnActiveOneDoesNot) {
  const UploadId idle = BeginImage(7, adapter_)->upload.id;
  const UploadId busy = BeginImage(8, adapter_)->upload.id;
  clock_.Advance(900);
  ASSERT_THAT(Send(busy, adapter_, SecondHalf(adapter_)), IsOk());
  clock_.Advance(900);
  uploads_->Sweep();
  EXPECT_EQ(StateOf(idle), "DEAD UPLOAD_DEAD");
  EXPECT_EQ(StateOf(busy), "OPEN");
  EXPECT_THAT(Commit(idle), IsError("UPLOAD_DEAD"));
}

TEST_F(UploadsTest, AnAbortedUploadIsOver) {
  const UploadId id = BeginImage(7, adapter_)->upload.id;
  ASSERT_THAT(uploads_->Abort(id), IsOk());
  ASSERT_THAT(uploads_->Abort(id), IsOk());
  EXPECT_THAT(Commit(id), IsError("UPLOAD_DEAD"));
  EXPECT_THAT(uploads_->Abort(UploadId("u-x")), IsError("UNKNOWN_UPLOAD"));
}

TEST_F(UploadsTest, AfterARestartAnUploadGoesOnFromItsLedger) {
  const UploadId id = BeginImage(7, adapter_)->upload.id;
  ASSERT_THAT(Send(id, adapter_, SecondHalf(adapter_)), IsOk());
  uploads_->Sweep();
  RestartAll();
  EXPECT_THAT(uploads_->Get(id)->missing, ElementsAre(FirstHalf(adapter_)));
  ASSERT_THAT(SendRest(id, adapter_), IsOk());
  EXPECT_EQ(Commit(id)->digest, DigestOf(adapter_.bytes(), adapter_.config));
}

TEST_F(UploadsTest, WhatHasArrivedCanBeReadAheadOfTheCommit) {
  std::vector<UploadId> opened;
  upload_options_.on_opened = [&](const Upload& upload) { opened.push_back(upload.id); };
  RestartAll();
  const Upload upload = BeginImage(7, adapter_)->upload;
  EXPECT_EQ(BeginImage(7, adapter_)->upload.id, upload.id);
  EXPECT_THAT(opened, ElementsAre(upload.id)) << "once, however many ranks begin it";
  ASSERT_THAT(Send(upload.id, adapter_, SecondHalf(adapter_)), IsOk());

  const auto coming = uploads_->Coming(upload.blob);
  ASSERT_TRUE(coming.has_value());
  const auto here = [&](const transfer::Range& range) { return *coming->arrivals->Has(range); };
  EXPECT_TRUE(here({0, adapter_.header_bytes}));
  EXPECT_FALSE(here(FirstHalf(adapter_)));
  const transfer::Range second = SecondHalf(adapter_);
  ASSERT_TRUE(here(second));
  EXPECT_TRUE(std::ranges::equal(coming->bytes.subspan(second.offset, second.length),
                                 adapter_.bytes().subspan(second.offset, second.length)));

  ASSERT_THAT(Send(upload.id, adapter_, FirstHalf(adapter_)), IsOk());
  ASSERT_THAT(Commit(upload.id), IsOk());
  EXPECT_TRUE(here({0, adapter_.image.size()}));
  EXPECT_FALSE(uploads_->Coming(upload.blob).has_value()) << "from now on it is read as stored";
}

TEST_F(UploadsTest, WhoeverReadsAheadLearnsThatTheUploadIsDead) {
  const Upload upload = BeginImage(7, adapter_)->upload;
  const auto coming = uploads_->Coming(upload.blob);
  ASSERT_TRUE(coming.has_value());
  ASSERT_THAT(uploads_->Abort(upload.id), IsOk());
  EXPECT_THAT(coming->arrivals->Has(FirstHalf(adapter_)).status(), IsError("UPLOAD_DEAD"));
}

TEST_F(UploadsTest, WhatALedgerNamesCanBeReadAheadAfterARestart) {
  const Upload upload = BeginImage(7, adapter_)->upload;
  ASSERT_THAT(Send(upload.id, adapter_, SecondHalf(adapter_)), IsOk());
  uploads_->Sweep();
  RestartAll();
  const auto coming = uploads_->Coming(upload.blob);
  ASSERT_TRUE(coming.has_value());
  EXPECT_TRUE(*coming->arrivals->Has(SecondHalf(adapter_)));
}

TEST_F(UploadsTest, WhatNoLedgerNamesComesAgain) {
  const UploadId id = BeginImage(7, adapter_)->upload.id;
  ASSERT_THAT(Send(id, adapter_, SecondHalf(adapter_)), IsOk());
  RestartAll();
  EXPECT_EQ(uploads_->Get(id)->missing.size(), 1u);
  EXPECT_THAT(Commit(id), IsError("RANGES_MISSING"));
  EXPECT_EQ(BeginImage(7, adapter_)->upload.id, id);
  ASSERT_THAT(SendRest(id, adapter_), IsOk());
  EXPECT_THAT(Commit(id), IsOk());
}

TEST_F(UploadsTest, ASealThatFailsLeavesTheUploadOpenForAnotherCommit) {
  const UploadId id = BeginImage(7, adapter_)->upload.id;
  ASSERT_THAT(SendRest(id, adapter_), IsOk());
  failing_.Fail(blob::BlobOp::kSeal, absl::UnavailableError("the disk is away"));
  EXPECT_TRUE(absl::IsUnavailable(Commit(id).status()));
  EXPECT_EQ(StateOf(id), "OPEN");
  EXPECT_THAT(Stored(), IsEmpty());
  failing_.Heal();
  EXPECT_THAT(Commit(id), IsOk());
}

TEST_F(UploadsTest, ASealedFileThatCannotBeOpenedIsTriedAgain) {
  const UploadId id = FailAfterTheSeal();
  EXPECT_THAT(Send(id, adapter_, SecondHalf(adapter_)), IsOk()) << "it is here already";
  uploads_->Sweep();
  EXPECT_EQ(Commit(id)->digest, DigestOf(adapter_.bytes(), adapter_.config));
}

TEST_F(UploadsTest, ACrashAfterTheSealGoesOnFromTheSealedFile) {
  const UploadId id = CrashAfterTheSeal();
  EXPECT_EQ(StateOf(id), "OPEN");
  EXPECT_THAT(uploads_->Get(id)->missing, IsEmpty());
  EXPECT_THAT(Send(id, adapter_, SecondHalf(adapter_)), IsError("UPLOAD_COMPLETE"));
  EXPECT_EQ(Commit(id)->digest, DigestOf(adapter_.bytes(), adapter_.config));
}

TEST_F(UploadsTest, ASealedFileThatTheDiskDoesNotGiveBackEndsItsUpload) {
  const UploadId id = CrashAfterTheSeal();
  failing_.Fail(blob::BlobOp::kLoad, Error(absl::StatusCode::kDataLoss, "DISK_FAILED", "gone"));
  EXPECT_THAT(Commit(id), IsError("DISK_FAILED"));
  EXPECT_EQ(StateOf(id), "DEAD DISK_FAILED");
}

TEST_F(UploadsTest, AnUploadWhoseFileIsNotOpenYetTakesNothingAndIsNotCommitted) {
  bool looked = false;
  failing_.During(blob::BlobOp::kCreate, [&] {
    const UploadId id = catalog_->ListOpenUploads()->front().id;
    EXPECT_THAT(uploads_->Commit(id, clock_.Now()), IsError("UPLOAD_OPENING"));
    EXPECT_THAT(uploads_->TargetOf(id), IsError("UPLOAD_OPENING"));
    EXPECT_THAT(uploads_->Get(id)->missing, ElementsAre(transfer::Range{0, adapter_.image.size()}));
    looked = true;
    return absl::OkStatus();
  });
  EXPECT_THAT(PublishImage(7, adapter_), IsOk());
  EXPECT_TRUE(looked);
}

TEST_F(UploadsTest, ARangeThatComesAgainAndStallsHoldsUpNoCommit) {
  const UploadId id = BeginImage(7, adapter_)->upload.id;
  ASSERT_THAT(SendRest(id, adapter_), IsOk());
  const auto target = *uploads_->TargetOf(id);
  auto again = target->Begin(SecondHalf(adapter_));
  ASSERT_THAT(again, IsOk());
  EXPECT_EQ(Commit(id)->digest, DigestOf(adapter_.bytes(), adapter_.config));
  const auto bytes = adapter_.bytes().subspan(SecondHalf(adapter_).offset);
  std::memcpy(again->destination().data(), bytes.data(), bytes.size());
  EXPECT_THAT(target->Finish(*std::move(again),
                             transfer::PieceChecksums(SecondHalf(adapter_).offset, bytes)),
              IsError("UPLOAD_COMPLETE"));
}

TEST_F(UploadsTest, AllCommitsJoinOneCheck) {
  std::atomic<int> stored = 0;
  upload_options_.on_stored = [&](int64_t took_ms) {
    ++stored;
    EXPECT_EQ(took_ms, 4'000);
  };
  RestartAll();
  const UploadId id = BeginImage(7, adapter_)->upload.id;
  now_ms_ += 4'000;  // a trainer that takes its time
  ASSERT_THAT(SendRest(id, adapter_), IsOk());
  std::latch all(16);
  std::vector<std::future<absl::StatusOr<Version>>> commits;
  for (int i = 0; i < 16; ++i) {
    commits.push_back(std::async(std::launch::async, [&] {
      all.arrive_and_wait();
      return Commit(id);
    }));
  }
  for (auto& commit : commits) EXPECT_THAT(commit.get(), IsOk());
  EXPECT_EQ(stored, 1);
}

TEST_F(UploadsTest, ACommitThatDoesNotWaitLearnsTheOutcomeLater) {
  const UploadId id = BeginImage(7, adapter_)->upload.id;
  ASSERT_THAT(SendRest(id, adapter_), IsOk());
  std::latch asked(1);
  failing_.During(blob::BlobOp::kSeal, [&] {
    asked.wait();
    return absl::OkStatus();
  });
  EXPECT_THAT(uploads_->Commit(id, clock_.Now()), IsError("CHECK_RUNNING"));
  EXPECT_TRUE(uploads_->Get(id)->checking);
  asked.count_down();
  EXPECT_THAT(Commit(id), IsOk());
}

TEST_F(UploadsTest, CommitsThatWaitAreLetGoWhenTheStoreLeaves) {
  const UploadId id = BeginImage(7, adapter_)->upload.id;
  ASSERT_THAT(SendRest(id, adapter_), IsOk());
  std::latch answered(1);
  failing_.During(blob::BlobOp::kSeal, [&] {
    uploads_->LetGo();
    answered.wait();
    return absl::OkStatus();
  });
  EXPECT_THAT(Commit(id), IsError("SHUTTING_DOWN"));
  answered.count_down();
  uploads_->Stop();
  EXPECT_THAT(Stored(), ElementsAre(7));  // the check went on
}

TEST_F(UploadsTest, ADiskThatRefusesToKeepBytesEndsTheUpload) {
  const absl::Status failed = Error(absl::StatusCode::kDataLoss, "DISK_FAILED", "as planned");
  for (const blob::BlobOp op : {blob::BlobOp::kSync, blob::BlobOp::kSeal}) {
    const UploadId id = BeginImage(7, adapter_)->upload.id;
    ASSERT_THAT(Send(id, adapter_, FirstHalf(adapter_)), IsOk());
    failing_.Fail(op, failed);
    uploads_->Sweep();  // writes the ledger
    if (op == blob::BlobOp::kSeal) {
      ASSERT_THAT(SendRest(id, adapter_), IsOk());
      EXPECT_THAT(Commit(id), IsError("DISK_FAILED"));
    }
    failing_.Heal();
    EXPECT_EQ(StateOf(id), "DEAD DISK_FAILED");
    EXPECT_THAT(Commit(id), IsError("DISK_FAILED")) << "no second try calls the bytes kept";
  }
  EXPECT_THAT(PublishImage(7, adapter_), IsOk()) << "from the beginning";
}

TEST_F(UploadsTest, BytesThatChangedSinceTheyArrivedGetNoDigest) {
  const TestAdapter large = MakeAdapter(7, /*width=*/20'000);  // four leaves, halves cut one
  uint64_t number = 7;
  for (const bool restart : {false, true}) {
    for (const transfer::Range& first : {FirstHalf(large), SecondHalf(large)}) {
      const UploadId id = BeginImage(++number, large)->upload.id;
      ASSERT_THAT(Send(id, large, first), IsOk());
      std::byte& byte = arrived_at_[arrived_at_.size() / 2];
      if (restart) {
        uploads_->Sweep();  // writes the ledger
        RestartAll();
      }
      byte ^= std::byte{1};
      ASSERT_THAT(SendRest(id, large), IsOk());
      EXPECT_THAT(Commit(id), IsError("RANGE_CORRUPT")) << "restarted: " << restart;
      EXPECT_EQ(StateOf(id), "DEAD RANGE_CORRUPT");
      ASSERT_THAT(collector_->Run(), IsOk());
    }
  }
  EXPECT_THAT(PublishImage(number, large), IsOk());
}

TEST_F(UploadsTest, AnotherPublisherTouchesNoUpload) {
  const Principal alice{.name = "alice"}, bob{.name = "bob"};
  const auto run = catalog_->OpenRun({.adapter = AdapterName("policy"), .principal = alice});
  run_ = run->number.value;
  BeginRequest request = Request(7, adapter_);
  request.principal = alice;
  const UploadId id = uploads_->Begin(request)->upload.id;
  for (const bool ended : {false, true}) {
    EXPECT_THAT(uploads_->Get(id, bob), IsError("NOT_OWNER"));
    EXPECT_THAT(uploads_->Abort(id, bob), IsError("NOT_OWNER"));
    EXPECT_THAT(uploads_->Commit(id, clock_.Now(), bob), IsError("NOT_OWNER"));
    if (ended) break;
    ASSERT_THAT(Send(id, adapter_, FirstHalf(adapter_)), IsOk());
    ASSERT_THAT(Send(id, adapter_, SecondHalf(adapter_)), IsOk());
    ASSERT_THAT(uploads_->Commit(id, clock_.Now() + 60'000, alice), IsOk());
  }
  EXPECT_THAT(uploads_->Commit(id, clock_.Now(), alice), IsOk());
}

TEST_F(UploadsTest, WhoSendsScatteredKeepsNobodyElseOut) {
  constexpr size_t kScattered = 100;
  upload_options_.pieces_max = 3 * kScattered;
  RestartAll();
  const Principal mallory{.name = "mallory"}, alice{.name = "alice"};
  std::map<std::string, uint64_t> runs;
  for (const Principal& who : {mallory, alice}) {
    runs[who.name] =
        catalog_->OpenRun({.adapter = AdapterName(who.name), .principal = who})->number.value;
  }
  const auto begin = [&](uint64_t number, const Principal& who) {
    BeginRequest request = Request(number, adapter_);
    request.key = Key(number, runs[who.name], who.name);
    request.principal = who;
    return uploads_->Begin(request)->upload.id;
  };
  // Every other byte behind the header, until that is refused or all of them are there.
  const auto scatter = [&](const UploadId& id) {
    for (uint64_t at = adapter_.header_bytes + 1; at < adapter_.image.size(); at += 2) {
      if (absl::Status sent = Send(id, adapter_, {at, 1}); !sent.ok()) return sent;
    }
    return absl::OkStatus();
  };
  const UploadId hostile = begin(1, mallory), honest = begin(1, alice);
  EXPECT_THAT(scatter(hostile), IsError("SERVER_BUSY"));
  const absl::Status refused = scatter(begin(2, mallory));
  EXPECT_TRUE(transfer::IsFull(refused)) << "clients try again";
  EXPECT_THAT(std::string(refused.message()), HasSubstr("of mallory"));
  for (uint64_t piece = PieceShares::kFree + kScattered / 2; piece > 0; --piece) {
    ASSERT_THAT(Send(honest, adapter_, {adapter_.header_bytes + 2 * piece, 1}), IsOk());
  }
  ASSERT_THAT(Send(honest, adapter_, FirstHalf(adapter_)), IsOk());
  ASSERT_THAT(Send(honest, adapter_, SecondHalf(adapter_)), IsOk());
  EXPECT_THAT(uploads_->Commit(honest, clock_.Now() + 60'000, alice), IsOk());
}

TEST_F(UploadsTest, WhatAnotherRankIsSendingIsTold) {
  const auto begun = BeginImage(7, adapter_);
  EXPECT_THAT(begun->in_flight, IsEmpty());
  const auto target = *uploads_->TargetOf(begun->upload.id);
  const auto slot = target->Begin(SecondHalf(adapter_));
  ASSERT_THAT(slot, IsOk());
  EXPECT_THAT(uploads_->Get(begun->upload.id)->in_flight, ElementsAre(SecondHalf(adapter_)));
  EXPECT_THAT(BeginImage(7, adapter_)->in_flight, ElementsAre(SecondHalf(adapter_)));
}

TEST_F(UploadsTest, AFullDiskIsAnErrorAtTheBeginning) {
  const TestAdapter large = MakeAdapter(1, /*width=*/100'000);
  EXPECT_THAT(BeginImage(7, large), IsError("DISK_FULL"));
  EXPECT_EQ(catalog_->Count()->open_uploads, 0u);
  EXPECT_THAT(PublishImage(7, adapter_), IsOk());
}

// It takes neither an image nor the word that its upload is over.
TEST_F(UploadsTest, WhatAFullDiskLeftOpenIsEndedByTheSweep) {
  auto refusing = std::make_unique<RefusingStore>();
  RefusingStore& records = *refusing;
  records.how = Error(absl::StatusCode::kResourceExhausted, "DISK_FULL", "make room");
  uploads_.reset();
  kv_ = std::move(refusing);
  RestartAll();
  OpenRun();
  failing_.During(blob::BlobOp::kCreate, [&] {
    records.refuses = true;
    return records.how;
  });
  for (const bool restart : {false, true}) {
    EXPECT_THAT(BeginImage(7, adapter_), IsError("DISK_FULL"));
    if (restart) RestartAll();
    const UploadId id = catalog_->ListOpenUploads()->front().id;
    records.refuses = false;
    clock_.Advance(1'001);
    uploads_->Sweep();
    EXPECT_EQ(StateOf(id), "DEAD UPLOAD_DEAD") << "restarted: " << restart;
  }
  failing_.Heal();
  EXPECT_THAT(PublishImage(7, adapter_), IsOk());
}

TEST_F(UploadsTest, WhatCannotBecomeAVersionIsRefusedAtOnce) {
  TestAdapter bad = adapter_;
  bad.config =
      R"({"peft_type":"LORA","r":8,"lora_alpha":16,"use_dora":true,"target_modules":["q_proj"]})";
  EXPECT_THAT(BeginImage(7, bad), IsError("DORA_UNSUPPORTED"));
  bad.config = R"({"peft_type":"IA3"})";
  EXPECT_THAT(BeginImage(7, bad), IsError("ADAPTER_KIND_UNSUPPORTED"));
  bad = adapter_;
  bad.config.replace(bad.config.find("\"r\":8"), 5, "\"r\":4");
  EXPECT_THAT(BeginImage(7, bad), IsError("RANK_MISMATCH"));
  bad = adapter_;
  bad.image.resize(bad.image.size() - 4);
  EXPECT_THAT(BeginImage(7, bad), IsError("IMAGE_TRUNCATED"));
  bad = adapter_;
  bad.header_bytes += 8;
  EXPECT_THAT(BeginImage(7, bad), IsError("IMAGE_MALFORMED"));
  bad = adapter_;
  bad.image.replace(0, 8, std::string("\xff\xff\xff\xff\xff\xff\xff\x7f", 8));
  EXPECT_FALSE(BeginImage(7, bad).ok());
  bad = adapter_;
  bad.config = std::string(kConfigBytesMax + 1, ' ');
  EXPECT_THAT(BeginImage(7, bad), IsError("CONFIG_MALFORMED"));
  EXPECT_EQ(Files(), 0u);
}

TEST_F(UploadsTest, AValueThatIsNotFiniteEndsTheUploadForEveryRank) {
  TestAdapter bad = adapter_;
  const uint32_t nan = 0x7fc00000;
  std::memcpy(bad.image.data() + bad.image.size() - 4, &nan, 4);
  const UploadId id = BeginImage(7, bad)->upload.id;
  ASSERT_THAT(SendRest(id, bad), IsOk());
  EXPECT_THAT(Commit(id), IsError("TENSOR_NOT_FINITE"));
  EXPECT_THAT(Commit(id), IsError("TENSOR_NOT_FINITE"));
  EXPECT_EQ(StateOf(id), "DEAD TENSOR_NOT_FINITE");
  EXPECT_THAT(Stored(), IsEmpty());
}

TEST_F(UploadsTest, TheNormOfThePolicyIsKept) {
  Policy policy;
  policy.max_tensor_norm = 1;
  ASSERT_THAT(catalog_->SetAdapter(AdapterName("policy"), policy, std::nullopt), IsOk());
  EXPECT_THAT(PublishImage(7, adapter_), IsError("NORM_EXCEEDED"));
}

TEST_F(UploadsTest, TheAnnouncedDigestIsCompared) {
  BeginRequest request = Request(7, adapter_);
  request.expected_digest = DigestOf(MakeAdapter(8).bytes(), adapter_.config);
  const UploadId id = uploads_->Begin(request)->upload.id;
  ASSERT_THAT(SendRest(id, adapter_), IsOk());
  EXPECT_THAT(Commit(id), IsError("DIGEST_MISMATCH"));
}

}  // namespace
}  // namespace lorry::store
