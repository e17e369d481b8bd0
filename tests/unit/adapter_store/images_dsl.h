// Uploads, transfers and garbage over a catalogue and blobs in memory, on a manual clock.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "lib/blob/failing_store.h"
#include "lib/blob/memory_store.h"
#include "services/adapter_store/images/collector.h"
#include "services/adapter_store/images/transfers.h"
#include "services/adapter_store/images/uploads.h"
#include "tests/unit/adapter_store/catalog_dsl.h"
#include "tests/unit/adapter_store/test_adapter.h"

namespace lorry::store {

// Does something before one kind of operation, until told otherwise: fail it, or look around while
// it is under way.
class Failing final : public blob::FailurePlan {
 public:
  absl::Status Before(blob::BlobOp op, std::string_view) override {
    return op == op_ && act_ ? act_() : absl::OkStatus();
  }
  void Fail(blob::BlobOp op, absl::Status status) {
    During(op, [status] { return status; });
  }
  void During(blob::BlobOp op, std::function<absl::Status()> act) {
    op_ = op, act_ = std::move(act);
  }
  void Heal() { act_ = nullptr; }

 private:
  blob::BlobOp op_ = blob::BlobOp::kCreate;
  std::function<absl::Status()> act_;
};

class ImagesTest : public CatalogTest {
 protected:
  ImagesTest() {
    upload_options_.idle_deadline_ms = 1000;
    upload_options_.ledger_every_bytes = 1;
    RestartAll();
    OpenRun();
  }
  ~ImagesTest() override { uploads_.reset(); }

  void OnUploadEnded(const Upload& upload) override {
    CatalogTest::OnUploadEnded(upload);
    if (uploads_.has_value()) uploads_->OnUploadEnded(upload);
  }
  // The process ends and begins again: what was in memory alone is gone.
  void RestartAll() {
    uploads_.reset();
    Restart();
    uploads_.emplace(*catalog_, *blobs_, clock_, upload_options_);
    collector_.emplace(*catalog_, *blobs_, [this] { return now_ms_; });
    ASSERT_THAT(uploads_->Recover(), IsOk());
  }

  BeginRequest Request(uint64_t number, const TestAdapter& adapter, uint64_t attempt = 1) {
    return {.key = Key(number),
            .attempt = attempt,
            .header = adapter.header(),
            .config_json = adapter.config,
            .image_bytes = adapter.image.size(),
            .expected_digest = {}};
  }
  absl::StatusOr<BeginReply> BeginImage(uint64_t number, const TestAdapter& adapter,
                                        uint64_t attempt = 1) {
    return uploads_->Begin(Request(number, adapter, attempt));
  }
  // What a transport does with one range.
  absl::Status Send(const UploadId& id, const TestAdapter& adapter, transfer::Range range) {
    LORRY_ASSIGN_OR_RETURN(const auto target, uploads_->TargetOf(id));
    LORRY_ASSIGN_OR_RETURN(auto slot, target->Begin(range));
    arrived_at_ = slot.destination();
    const auto bytes = adapter.bytes().subspan(range.offset, range.length);
    std::memcpy(slot.destination().data(), bytes.data(), bytes.size());
    return target->Finish(std::move(slot), transfer::PieceChecksums(range.offset, bytes));
  }
  absl::Status SendRest(const UploadId& id, const TestAdapter& adapter) {
    const auto standing = uploads_->Get(id);
    if (!standing.ok()) return standing.status();
    for (const transfer::Range& range : standing->missing) {
      LORRY_RETURN_IF_ERROR(Send(id, adapter, range));
    }
    return absl::OkStatus();
  }
  absl::StatusOr<Version> Commit(const UploadId& id) {
    return uploads_->Commit(id, clock_.Now() + 60'000);
  }
  absl::StatusOr<Version> PublishImage(uint64_t number, const TestAdapter& adapter) {
    LORRY_ASSIGN_OR_RETURN(const BeginReply begun, BeginImage(number, adapter));
    if (begun.stored.has_value()) return *begun.stored;
    LORRY_RETURN_IF_ERROR(SendRest(begun.upload.id, adapter));
    return Commit(begun.upload.id);
  }
  std::string StateOf(const UploadId& id) {
    const auto standing = uploads_->Get(id);
    if (!standing.ok()) return ReasonOf(standing.status());
    switch (standing->upload.state) {
      case UploadState::kOpen:
        return "OPEN";
      case UploadState::kStored:
        return "STORED";
      case UploadState::kDead:
        return "DEAD " + ReasonOf(standing->upload.why);
    }
    return "";
  }
  size_t Files() { return blobs_->List().value().size(); }

  std::span<std::byte> arrived_at_;  // where the last range that was sent lies
  ManualClock clock_{1};
  std::unique_ptr<blob::Store> memory_ = blob::MakeMemoryStore(/*bytes_max=*/10 << 20);
  Failing failing_;
  std::unique_ptr<blob::Store> blobs_ = blob::MakeFailingStore(*memory_, failing_);
  UploadsOptions upload_options_;
  std::optional<Uploads> uploads_;
  std::optional<Collector> collector_;
};

}  // namespace lorry::store
