#include "services/adapter_store/images/uploads.h"

#include <chrono>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "lib/base/error.h"
#include "lib/base/strings.h"
#include "lib/runtime/fault_point.h"
#include "services/adapter_store/images/check.h"
#include "services/adapter_store/images/live_upload.h"

namespace lorry::store {
namespace {

using transfer::PutTarget;

// Checks that wait for a thread: every open upload may be committed at once.
constexpr size_t kChecksWaitingMax = kOpenUploadsMax;

std::span<const std::byte> AsBytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

absl::Status DeadUpload(std::string_view message) {
  return Error(absl::StatusCode::kAborted, "UPLOAD_DEAD", message);
}

absl::Status CheckOwner(const Upload& upload, const Principal& principal) {
  if (principal.Owns(upload.owner)) return absl::OkStatus();
  return NotOwner(absl::StrCat("upload ", upload.id.value), principal);
}

absl::Status Opening(const UploadId& id) {
  return Error(absl::StatusCode::kUnavailable, "UPLOAD_OPENING",
               absl::StrCat("upload ", id.value, " is just being opened; try again"));
}

absl::Status Leaving() {
  return Error(absl::StatusCode::kUnavailable, "SHUTTING_DOWN",
               "the store is shutting down; commit again once it is back");
}

absl::Status MissingRanges(const std::vector<transfer::Range>& missing) {
  uint64_t bytes = 0;
  for (const transfer::Range& range : missing) bytes += range.length;
  return Error(absl::StatusCode::kFailedPrecondition, "RANGES_MISSING",
               absl::StrCat(bytes, " bytes in ", missing.size(), " ranges have not arrived, first ",
                            transfer::ToString(missing.front()),
                            "; send them (GetUpload lists all) and commit again"));
}

}  // namespace

Uploads::Uploads(Catalog& catalog, blob::Store& blobs, const Clock& clock, UploadsOptions options)
    : catalog_(catalog),
      blobs_(blobs),
      clock_(clock),
      options_(std::move(options)),
      shares_(PieceShares::Create(options_.pieces_max)),
      checks_(
          {.name = "checks", .threads = options_.check_threads, .waiting_max = kChecksWaitingMax}) {
}

std::shared_ptr<Uploads::Live> Uploads::Find(const UploadId& id) const {
  MutexLock lock(mutex_);
  const auto it = live_.find(id);
  return it == live_.end() ? nullptr : it->second;
}

std::shared_ptr<Uploads::Live> Uploads::FindOrAdd(const Upload& upload) {
  MutexLock lock(mutex_);
  std::shared_ptr<Live>& live = live_[upload.id];
  if (live == nullptr) live = std::make_shared<Live>(upload, clock_.Now());
  return live;
}

void Uploads::Drop(const UploadId& id) {
  MutexLock lock(mutex_);
  live_.erase(id);
}

absl::StatusOr<BeginReply> Uploads::Begin(const BeginRequest& request) {
  if (request.config_json.size() > kConfigBytesMax) {
    return Error(absl::StatusCode::kInvalidArgument, "CONFIG_MALFORMED",
                 absl::StrCat("adapter_config.json has ", request.config_json.size(),
                              " bytes; at most ", kConfigBytesMax, " are taken"));
  }
  const auto header = AsBytes(request.header);
  LORRY_ASSIGN_OR_RETURN(const std::string canonical,
                         CheckAnnouncement(header, request.image_bytes, request.config_json));
  LORRY_ASSIGN_OR_RETURN(const BegunUpload begun,
                         catalog_.BeginUpload({.key = request.key,
                                               .attempt = request.attempt,
                                               .image_bytes = request.image_bytes,
                                               .header_bytes = request.header.size(),
                                               .header_sha256 = ToHex(HashSha256(request.header)),
                                               .config_json = request.config_json,
                                               .canonical_config = canonical,
                                               .expected_digest = request.expected_digest,
                                               .keep = request.keep,
                                               .principal = request.principal}));
  LORRY_FAULT_POINT("store.begin.recorded");
  if (begun.stored.has_value()) return BeginReply{.stored = begun.stored};

  const std::shared_ptr<Live> live = FindOrAdd(begun.upload);
  if (absl::Status opened = OpenFile(live); !opened.ok()) {
    // Where even that cannot be written, the sweep ends it, which it finds among the live ones.
    LORRY_RETURN_IF_ERROR(catalog_.EndUpload(begun.upload.id, opened));
    Drop(begun.upload.id);
    return opened;
  }
  // The upload may have been ended after it was recorded and before `live` was in the map, where
  // whoever ended it would have found it. So its state is read once more.
  LORRY_ASSIGN_OR_RETURN(const Upload now, catalog_.GetUpload(begun.upload.id));
  if (now.state != UploadState::kOpen) {
    Drop(now.id);
    LORRY_ASSIGN_OR_RETURN(const Version version, Ended(now.id, request.principal));
    return BeginReply{.stored = version};
  }
  LORRY_RETURN_IF_ERROR(PutHeader(*live, request.header));
  LORRY_FAULT_POINT("store.begin.opened");
  live->progress = clock_.Now();
  const std::shared_ptr<PutTarget> target = live->Target();
  BeginReply reply{.upload = begun.upload};
  if (target != nullptr) {
    reply.missing = target->missing();
    reply.in_flight = target->in_flight();
  }
  return reply;
}

absl::Status Uploads::OpenFile(const std::shared_ptr<Live>& live) {
  if (live->opened) return absl::OkStatus();  // without `io`, which a running check holds
  MutexLock lock(live->io);
  if (live->opened) return absl::OkStatus();
  LORRY_ASSIGN_OR_RETURN(live->staging,
                         blobs_.Create(live->record.blob.value, live->record.image_bytes));
  LORRY_FAULT_POINT("store.begin.allocated");
  SetTarget(live, live->staging, {});
  live->opened = true;
  options_.on_opened(live->record);
  return absl::OkStatus();
}

// The header is received like any range, so that it is compared with what is there of it already.
// If all of it is there, an earlier Begin put it, and the catalogue has compared the two by hash.
absl::Status Uploads::PutHeader(Live& live, std::string_view header) {
  const std::shared_ptr<PutTarget> target = live.Target();
  const transfer::Range range{.offset = 0, .length = header.size()};
  if (target == nullptr || target->received().Contains(range)) return absl::OkStatus();
  absl::StatusOr<PutTarget::Slot> slot = target->Begin(range);
  // Busy: another rank is putting the same header at this moment.
  if (ReasonOf(slot.status()) == "RANGE_BUSY") return absl::OkStatus();
  LORRY_RETURN_IF_ERROR(slot.status());
  std::memcpy(slot->destination().data(), header.data(), header.size());
  return target->Finish(*std::move(slot), transfer::PieceChecksums(0, AsBytes(header)));
}

void Uploads::SetTarget(const std::shared_ptr<Live>& live,
                        const std::shared_ptr<blob::Staging>& staging,
                        transfer::RangeSet received) {
  std::weak_ptr<Live> weak = live;
  const std::span<std::byte> image = staging->bytes();  // the target keeps it mapped
  PutTarget::Options options{.owner = staging, .bytes = image, .received = std::move(received)};
  options.on_range = [this, weak, image](const transfer::Range& range,
                                         std::span<const transfer::Checksum> checksums) {
    if (const std::shared_ptr<Live> upload = weak.lock()) {
      upload->arrived.Add(range, checksums, image);
      upload->progress = clock_.Now();
      upload->unledgered += range.length;
    }
    return absl::OkStatus();
  };
  options.on_pieces = [share = shares_->Open(live->record.owner)](size_t pieces) {
    return share->Resize(pieces);
  };
  auto target = PutTarget::Create(std::move(options));
  MutexLock lock(live->mutex);
  live->target = std::move(target);
}

std::optional<transfer::GetSource> Uploads::Coming(const BlobKey& blob) const {
  for (const std::shared_ptr<Live>& live : All()) {
    if (live->record.blob != blob) continue;
    const std::shared_ptr<PutTarget> target = live->Target();
    if (target == nullptr) return std::nullopt;
    return transfer::GetSource{
        .owner = target, .bytes = target->bytes(), .leaves = {}, .arrivals = target};
  }
  return std::nullopt;
}

absl::StatusOr<std::shared_ptr<PutTarget>> Uploads::TargetOf(const UploadId& id) {
  const auto complete = [] {
    return Error(absl::StatusCode::kFailedPrecondition, "UPLOAD_COMPLETE",
                 "every byte of this upload is here; commit it");
  };
  if (const std::shared_ptr<Live> live = Find(id)) {
    if (!live->opened) return Opening(id);
    if (std::shared_ptr<PutTarget> target = live->Target()) return target;
    return complete();
  }
  // Whoever asks has a ticket, which only the owner was given.
  const absl::StatusOr<Version> ended = Ended(id, {.name = "", .is_operator = true});
  return ended.ok() ? complete() : ended.status();
}

// What became of an upload that is not live.
absl::StatusOr<Version> Uploads::Ended(const UploadId& id, const Principal& principal) {
  LORRY_ASSIGN_OR_RETURN(const Upload upload, catalog_.GetUpload(id));
  LORRY_RETURN_IF_ERROR(CheckOwner(upload, principal));
  switch (upload.state) {
    case UploadState::kStored:
      return catalog_.GetVersion(upload.key);
    case UploadState::kDead:
      return upload.why;
    case UploadState::kOpen:
      break;
  }
  return Opening(id);
}

absl::StatusOr<Standing> Uploads::Get(const UploadId& id, const Principal& principal) {
  Standing standing;
  // Open uploads are answered from memory and not by the catalogue, as a thousand ranks may ask
  // while the last one sends.
  if (const std::shared_ptr<Live> live = Find(id)) {
    standing.upload = live->record;
    LORRY_RETURN_IF_ERROR(CheckOwner(standing.upload, principal));
    standing.checking = live->Checking();
    if (!live->opened) {
      standing.missing = {{.offset = 0, .length = standing.upload.image_bytes}};
    } else if (const std::shared_ptr<PutTarget> target = live->Target()) {
      standing.missing = target->missing();
      standing.in_flight = target->in_flight();
    }
    return standing;
  }
  LORRY_ASSIGN_OR_RETURN(standing.upload, catalog_.GetUpload(id));
  LORRY_RETURN_IF_ERROR(CheckOwner(standing.upload, principal));
  if (standing.upload.state == UploadState::kStored) {
    const absl::StatusOr<Version> version = catalog_.GetVersion(standing.upload.key);
    if (version.ok()) standing.version = *version;
  }
  return standing;
}

absl::Status Uploads::Abort(const UploadId& id, const Principal& principal) {
  LORRY_ASSIGN_OR_RETURN(const Upload upload, catalog_.GetUpload(id));
  LORRY_RETURN_IF_ERROR(CheckOwner(upload, principal));
  return catalog_.EndUpload(id, DeadUpload("the upload was aborted by its publisher"));
}

absl::StatusOr<Version> Uploads::Commit(const UploadId& id, Tick deadline,
                                        const Principal& principal) {
  const std::shared_ptr<Live> live = Find(id);
  if (live == nullptr) return Ended(id, principal);
  LORRY_RETURN_IF_ERROR(CheckOwner(live->record, principal));
  LORRY_RETURN_IF_ERROR(SweepOne(live));  // after a conflict, or if idle too long, it ends here
  LORRY_ASSIGN_OR_RETURN(const std::shared_ptr<Check> check, StartCheck(live));
  MutexLock lock(live->mutex);
  while (!check->result.has_value()) {
    if (leaving_) return Leaving();
    const int64_t left = deadline - clock_.Now();
    if (left <= 0) {
      return Error(absl::StatusCode::kDeadlineExceeded, "CHECK_RUNNING",
                   "the image is still being checked; commit again to learn the outcome");
    }
    check->ended.wait_for(live->mutex, std::chrono::milliseconds(left));
  }
  return *check->result;
}

void Uploads::LetGo() {
  leaving_ = true;
  for (const std::shared_ptr<Live>& live : All()) {
    MutexLock lock(live->mutex);
    if (live->check != nullptr) live->check->ended.notify_all();
  }
}

std::vector<std::shared_ptr<Uploads::Live>> Uploads::All() const {
  std::vector<std::shared_ptr<Live>> all;
  MutexLock lock(mutex_);
  for (const auto& [id, live] : live_) all.push_back(live);
  return all;
}

// The check that runs, or a new one.
absl::StatusOr<std::shared_ptr<Uploads::Check>> Uploads::StartCheck(
    const std::shared_ptr<Live>& live) {
  if (!live->opened) return Opening(live->record.id);
  MutexLock lock(live->mutex);
  if (live->check != nullptr) return live->check;
  if (live->target != nullptr) {
    const std::vector<transfer::Range> missing = live->target->missing();
    if (!missing.empty()) return MissingRanges(missing);
  }
  auto check = std::make_shared<Check>();
  LORRY_RETURN_IF_ERROR(checks_.Submit([this, live, check] {
    absl::StatusOr<Version> result = RunCheck(live);
    MutexLock guard(live->mutex);
    // The next commit checks again, if the upload is still open: a bad image has ended it, but a
    // full disk, say, has not.
    if (!result.ok()) live->check = nullptr;
    check->result = std::move(result);
    check->ended.notify_all();
  }));
  live->check = check;
  return check;
}

absl::StatusOr<Version> Uploads::RunCheck(const std::shared_ptr<Live>& live) {
  MutexLock lock(live->io);
  std::span<const std::byte> image;
  if (live->sealed != nullptr) {
    image = live->sealed->bytes();
    absl::Status loaded = live->sealed->Load(0, image.size());
    if (absl::IsDataLoss(loaded)) return EndWith(live->record.id, loaded);
    LORRY_RETURN_IF_ERROR(loaded);
  } else {
    const std::shared_ptr<PutTarget> target = live->Target();
    // Every byte has arrived. A range that is being received now repeats some of them: it goes to a
    // buffer beside the image and is refused at its end, so that the image cannot change.
    target->End(Error(absl::StatusCode::kFailedPrecondition, "UPLOAD_COMPLETE",
                      "every byte of this upload is here and it is being checked"));
    image = live->staging->bytes();
  }
  const absl::StatusOr<CheckOutcome> checked = CheckBytes(*live, image);
  absl::StatusOr<Version> stored = checked.ok() ? Publish(*live, live->Seal(blobs_), *checked)
                                                : absl::StatusOr<Version>(checked.status());
  if (stored.ok()) {
    options_.on_stored(stored->stored_at_ms - live->record.begun_at_ms);
    Drop(live->record.id);
    return stored;
  }
  const absl::StatusOr<Upload> now = catalog_.GetUpload(live->record.id);
  const bool retry = now.ok() && now->state == UploadState::kOpen;
  if (retry && live->sealed == nullptr) {
    // Ranges that are sent again find a target like the one ended above, with every byte received.
    SetTarget(live, live->staging,
              transfer::RangeSet(std::vector<transfer::Range>{{0, image.size()}}));
  }
  return stored;
}

// Whether the bytes that arrived are an adapter; the upload ends when they are not.
absl::StatusOr<CheckOutcome> Uploads::CheckBytes(Live& live, std::span<const std::byte> image) {
  const Upload& upload = live.record;
  LORRY_ASSIGN_OR_RETURN(const Adapter adapter, catalog_.GetAdapter(upload.key.adapter));
  absl::StatusOr<CheckOutcome> checked =
      CheckImage(image, upload.config_json, adapter.policy.max_tensor_norm);
  if (!checked.ok()) return EndWith(upload.id, checked.status());
  if (absl::Status same = live.arrived.Compare(ToChecksums(checked->leaves)); !same.ok()) {
    return EndWith(upload.id, same);
  }
  LORRY_FAULT_POINT("store.commit.checked");
  return checked;
}

absl::Status Uploads::Live::Seal(blob::Store& blobs) {
  if (sealed != nullptr) return absl::OkStatus();
  if (!is_sealed) LORRY_RETURN_IF_ERROR(staging->Seal());
  is_sealed = true;
  LORRY_FAULT_POINT("store.commit.sealed");
  LORRY_ASSIGN_OR_RETURN(sealed, blobs.Open(record.blob.value));
  ClearTarget();
  return absl::OkStatus();
}

absl::StatusOr<Version> Uploads::Publish(const Live& live, const absl::Status& sealed,
                                         const CheckOutcome& checked) {
  const Upload& upload = live.record;
  // The disk failed to keep some of the bytes. A second sync could succeed though they are lost.
  if (absl::IsDataLoss(sealed)) return EndWith(upload.id, sealed);
  LORRY_RETURN_IF_ERROR(sealed);
  LORRY_RETURN_IF_ERROR(catalog_.PutLeaves(upload.blob, checked.leaves));
  LORRY_FAULT_POINT("store.commit.leaves_kept");
  absl::StatusOr<Version> version = catalog_.StoreVersion(upload.id, checked.image);
  LORRY_FAULT_POINT("store.commit.published");
  return version;
}

absl::Status Uploads::EndWith(const UploadId& id, const absl::Status& why) {
  LORRY_RETURN_IF_ERROR(catalog_.EndUpload(id, why));
  return why;
}

void Uploads::OnUploadEnded(const Upload& upload) {
  options_.on_dead(ReasonOf(upload.why));
  const std::shared_ptr<Live> live = Find(upload.id);
  if (live == nullptr) return;
  Drop(upload.id);
  if (const std::shared_ptr<PutTarget> target = live->Target()) target->End(upload.why);
}

}  // namespace lorry::store
