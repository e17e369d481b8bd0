// Uploads over time: taken up again after a crash, written down while they grow, ended when idle.
#include <spdlog/spdlog.h>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "lib/base/error.h"
#include "lib/runtime/fault_point.h"
#include "services/adapter_store/images/live_upload.h"

namespace lorry::store {
namespace {

using transfer::Range;
using transfer::RangeSet;

// A ledger of more pieces (some 25 bytes each) is not worth a transaction: it is written once the
// gaps have closed.
constexpr size_t kLedgerRangesMax = PieceShares::kFree;

std::string EncodeLedger(const std::vector<Range>& ranges) {
  nlohmann::json ledger = nlohmann::json::array();
  for (const Range& range : ranges) ledger.push_back({range.offset, range.length});
  return ledger.dump();
}

// What cannot be read counts as not arrived: it comes again.
RangeSet DecodeLedger(const std::string& text) {
  const nlohmann::json ledger = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  RangeSet set;
  if (!ledger.is_array()) return set;
  for (const nlohmann::json& pair : ledger) {
    if (!pair.is_array() || pair.size() != 2) return RangeSet();
    if (!set.Add({.offset = pair[0], .length = pair[1]}).ok()) return RangeSet();
  }
  return set;
}

bool HasHeader(const Upload& upload, std::span<const std::byte> bytes) {
  const std::string_view front(reinterpret_cast<const char*>(bytes.data()), upload.header_bytes);
  return ToHex(HashSha256(front)) == upload.header_sha256;
}

}  // namespace

absl::Status Uploads::Recover() {
  LORRY_ASSIGN_OR_RETURN(const std::vector<Upload> open, catalog_.ListOpenUploads());
  for (const Upload& upload : open) {
    const absl::Status resumed = Resume(FindOrAdd(upload));
    if (resumed.ok()) continue;
    const absl::Status ended =
        catalog_.EndUpload(upload.id, Annotate(resumed, "after a restart of the store"));
    // As on a full disk, which must not keep the store from serving what it has.
    if (!ended.ok()) {
      spdlog::warn("upload {} cannot go on ({}), which cannot be written down either: {}",
                   upload.id.value, resumed.ToString(), ended.ToString());
    }
  }
  return absl::OkStatus();
}

absl::Status Uploads::Resume(const std::shared_ptr<Live>& live) {
  const Upload& upload = live->record;
  {
    MutexLock lock(live->io);
    absl::StatusOr<std::unique_ptr<blob::Staging>> staging = blobs_.Resume(upload.blob.value);
    if (staging.ok() && (*staging)->bytes().size() == upload.image_bytes) {
      live->staging = *std::move(staging);
      LORRY_ASSIGN_OR_RETURN(const std::string ledger, catalog_.GetLedger(upload.id));
      RangeSet received = DecodeLedger(ledger);
      LORRY_ASSIGN_OR_RETURN(const std::string leaves, catalog_.GetLeaves(upload.blob));
      if (HasHeader(upload, live->staging->bytes())) {
        LORRY_RETURN_IF_ERROR(received.Add({.offset = 0, .length = upload.header_bytes}));
      }
      live->arrived.Resume(received.Ranges(), leaves);
      SetTarget(live, live->staging, std::move(received));
      live->opened = true;
      return absl::OkStatus();
    }
    // Sealed: it crashed between the seal and the catalogue's transaction. Commit goes on from
    // here.
    if (auto sealed = blobs_.Open(upload.blob.value); sealed.ok()) {
      live->sealed = *std::move(sealed);
      LORRY_ASSIGN_OR_RETURN(const std::string leaves, catalog_.GetLeaves(upload.blob));
      live->arrived.Resume({{0, upload.image_bytes}}, leaves);
      live->opened = true;
      return absl::OkStatus();
    }
  }
  // It crashed before the file was there.
  return OpenFile(live);
}

void Uploads::Sweep() {
  for (const std::shared_ptr<Live>& live : All()) {
    // A failure is the upload's own, was recorded with it, and the next sweep tries again.
    (void)SweepOne(live);
    if (live->unledgered >= options_.ledger_every_bytes && !live->Checking()) {
      (void)WriteLedger(*live);
    }
  }
}

// OK while the upload may go on; else why not, which is then also on record.
absl::Status Uploads::SweepOne(const std::shared_ptr<Live>& live) {
  if (live->Checking()) return absl::OkStatus();
  absl::Status why;
  if (const auto target = live->Target()) why = target->ended();
  if (ReasonOf(why) == "UPLOAD_COMPLETE") return absl::OkStatus();  // a check has just begun
  if (why.ok() && clock_.Now() - live->progress > options_.idle_deadline_ms) {
    why = Error(absl::StatusCode::kAborted, "UPLOAD_DEAD",
                absl::StrCat("nothing arrived for ", options_.idle_deadline_ms,
                             " ms; begin the upload again"));
  }
  if (why.ok()) return why;
  LORRY_RETURN_IF_ERROR(catalog_.EndUpload(live->record.id, why));
  return why;
}

absl::Status Uploads::WriteLedger(Live& live) {
  MutexLock lock(live.io);
  const std::shared_ptr<transfer::PutTarget> target = live.Target();
  if (target == nullptr || live.staging == nullptr) return absl::OkStatus();
  const uint64_t fresh = live.unledgered;
  const std::vector<Range> ranges = target->received().Ranges();  // before the sync
  if (ranges.size() > kLedgerRangesMax) return absl::OkStatus();
  const absl::Status synced = live.staging->Sync();
  if (absl::IsDataLoss(synced)) return EndWith(live.record.id, synced);
  LORRY_RETURN_IF_ERROR(synced);
  LORRY_FAULT_POINT("store.ledger.synced");
  LORRY_RETURN_IF_ERROR(catalog_.PutLeaves(live.record.blob, live.arrived.Kept()));
  LORRY_RETURN_IF_ERROR(catalog_.PutLedger(live.record.id, EncodeLedger(ranges)));
  LORRY_FAULT_POINT("store.ledger.kept");
  live.unledgered -= fresh;
  return absl::OkStatus();
}

}  // namespace lorry::store
