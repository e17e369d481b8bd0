// Uploads in the catalogue: which attempt at which version is the one that counts.
#include <openssl/rand.h>

#include <array>

#include "absl/strings/str_cat.h"
#include "lib/base/digest.h"
#include "lib/base/error.h"
#include "lib/base/strings.h"
#include "services/adapter_store/catalog/catalog.h"
#include "services/adapter_store/catalog/draft.h"
#include "services/adapter_store/catalog/keys.h"

namespace lorry::store {
namespace {

bool SameImage(const Upload& upload, const BeginUploadArgs& args) {
  return upload.image_bytes == args.image_bytes && upload.header_bytes == args.header_bytes &&
         upload.header_sha256 == args.header_sha256 && upload.config_json == args.config_json &&
         upload.expected_digest == args.expected_digest && upload.keep == args.keep;
}

absl::Status Conflict(const VersionKey& key, std::string_view what) {
  return Error(absl::StatusCode::kAlreadyExists, "VERSION_CONFLICT",
               absl::StrCat(ToString(key), " ", ToAbsl(what), "; publish the next number"));
}

absl::StatusOr<std::optional<Upload>> FindUpload(Draft& draft, const UploadId& id) {
  LORRY_ASSIGN_OR_RETURN(std::optional<Upload> open, draft.Get<Upload>(keys::OfOpenUpload(id)));
  if (open.has_value()) return open;
  return draft.Get<Upload>(keys::OfEndedUpload(id));
}

// A refusal, which ends the upload, and not records that cannot be read: those say nothing of it, and
// a draft that stopped half-way must not be committed.
bool IsVerdict(const absl::Status& status) {
  return !ReasonOf(status).empty() && !absl::IsDataLoss(status) && !absl::IsUnavailable(status) &&
         !absl::IsResourceExhausted(status);
}

// Not to be guessed: who knows it may ask for it, and tickets name it.
absl::StatusOr<std::string> NewUploadId() {
  std::array<uint8_t, 16> random;
  if (RAND_bytes(random.data(), random.size()) != 1) {
    return absl::InternalError("the system has no random bytes for an upload's id");
  }
  return "u-" + ToHex(random);
}

absl::Status NoSuchUpload(const UploadId& id) {
  return Error(
      absl::StatusCode::kNotFound, "UNKNOWN_UPLOAD",
      absl::StrCat("there is no upload ", id.value, ", or it ended long ago; begin it again"));
}

}  // namespace

// The run may publish at all, and this number.
absl::Status Catalog::CheckPlace(Draft& draft, const Adapter& adapter, const VersionKey& key) {
  LORRY_RETURN_IF_ERROR(CheckInService(adapter));
  LORRY_ASSIGN_OR_RETURN(const std::optional<Run> run,
                         draft.Get<Run>(keys::OfRun(key.adapter, key.run)));
  if (!run.has_value()) {
    return Error(absl::StatusCode::kNotFound, "UNKNOWN_RUN",
                 absl::StrCat("adapter ", key.adapter.value, " has no run ", key.run.value,
                              "; open one and publish in it"));
  }
  if (key.run != adapter.current_run) {
    return Error(
        absl::StatusCode::kFailedPrecondition, "RUN_FENCED",
        absl::StrCat("run ", key.run.value, " of ", key.adapter.value, " is over: run ",
                     adapter.current_run.value, " is current; this process publishes no longer"));
  }
  LORRY_ASSIGN_OR_RETURN(const std::optional<Tombstone> tombstone,
                         draft.Get<Tombstone>(keys::OfTombstone(key)));
  if (tombstone.has_value()) return Conflict(key, "was stored and deleted");
  LORRY_ASSIGN_OR_RETURN(const auto stored, draft.GetText(keys::OfVersion(key)));
  if (stored.has_value()) return absl::OkStatus();
  const bool below_newest = run->newest.has_value() && key.number.value < *run->newest;
  const bool below_start = run->resumed_from.has_value() && key.number < run->resumed_from->number;
  if (!below_newest && !below_start) return absl::OkStatus();
  return Error(absl::StatusCode::kFailedPrecondition, "VERSION_TOO_OLD",
               absl::StrCat(ToString(key), " is below ",
                            below_newest ? "the run's newest, " : "what the run went on from, ",
                            below_newest ? *run->newest : run->resumed_from->number.value,
                            "; numbers only increase within a run"));
}

// The version, when this very content is known to be stored; none when only its bytes can tell.
absl::StatusOr<std::optional<Version>> Catalog::AlreadyStored(Draft& draft,
                                                              const BeginUploadArgs& args) {
  LORRY_ASSIGN_OR_RETURN(std::optional<Version> version,
                         draft.Get<Version>(keys::OfVersion(args.key)));
  if (!version.has_value()) return std::optional<Version>();
  if (!args.expected_digest.empty()) {
    if (args.expected_digest == version->digest) return version;
    return Conflict(args.key, "is stored with another digest");
  }
  LORRY_ASSIGN_OR_RETURN(const std::optional<AttemptMark> mark,
                         draft.Get<AttemptMark>(keys::OfAttempt(args.key)));
  if (mark.has_value() && mark->attempt == args.attempt) {
    LORRY_ASSIGN_OR_RETURN(const std::optional<Upload> upload, FindUpload(draft, mark->upload));
    const bool became_it =
        upload.has_value() && upload->state == UploadState::kStored && SameImage(*upload, args);
    if (became_it) return version;
  }
  if (args.image_bytes != version->image_bytes ||
      args.canonical_config != version->canonical_config) {
    return Conflict(args.key, "is stored with another length or config");
  }
  return std::optional<Version>();
}

// The open upload of the same attempt, if this call only joins it. Ends an older attempt.
absl::StatusOr<std::optional<Upload>> Catalog::JoinOrFence(Draft& draft, News& news,
                                                           const BeginUploadArgs& args) {
  LORRY_ASSIGN_OR_RETURN(const std::optional<AttemptMark> mark,
                         draft.Get<AttemptMark>(keys::OfAttempt(args.key)));
  if (!mark.has_value()) return std::optional<Upload>();
  const auto fenced = [&](uint64_t by) {
    return Error(
        absl::StatusCode::kFailedPrecondition, "ATTEMPT_FENCED",
        absl::StrCat("attempt ", by, " at ", ToString(args.key), " has begun; this one is over"));
  };
  if (args.attempt < mark->attempt) return fenced(mark->attempt);
  LORRY_ASSIGN_OR_RETURN(std::optional<Upload> open,
                         draft.Get<Upload>(keys::OfOpenUpload(mark->upload)));
  if (!open.has_value()) return std::optional<Upload>();
  if (args.attempt == mark->attempt && SameImage(*open, args)) return open;
  const absl::Status why =
      args.attempt > mark->attempt
          ? fenced(args.attempt)
          : Error(absl::StatusCode::kAborted, "RANGE_CONFLICT",
                  absl::StrCat("ranks of one attempt stated different headers, configs, lengths or "
                               "digests for ",
                               ToString(args.key), "; begin a new attempt"));
  LORRY_RETURN_IF_ERROR(End(draft, news, *std::move(open), why));
  if (args.attempt == mark->attempt) return why;
  return std::optional<Upload>();
}

absl::StatusOr<BegunUpload> Catalog::BeginUpload(const BeginUploadArgs& args) {
  BegunUpload begun;
  absl::Status verdict;  // an end that must be kept although this call fails
  bool room = true;      // or it is made in one transaction after the other
  const auto begin = [&](Draft& draft, News& news) -> absl::Status {
    begun = {};
    room = true;
    verdict = absl::OkStatus();
    LORRY_ASSIGN_OR_RETURN(Adapter adapter, NeedAdapter(draft, args.key.adapter));
    LORRY_RETURN_IF_ERROR(CheckPlace(draft, adapter, args.key));
    LORRY_ASSIGN_OR_RETURN(const std::optional<Run> run,
                           draft.Get<Run>(keys::OfRun(args.key.adapter, args.key.run)));
    if (!args.principal.Owns(run->owner)) {
      return NotOwner(absl::StrCat("run ", args.key.run.value, " of ", args.key.adapter.value),
                      args.principal);
    }
    LORRY_ASSIGN_OR_RETURN(begun.stored, AlreadyStored(draft, args));
    if (begun.stored.has_value()) {
      if (args.keep) Keep(draft, news, *begun.stored);
      return absl::OkStatus();
    }
    const absl::StatusOr<std::optional<Upload>> joined = JoinOrFence(draft, news, args);
    if (!joined.ok() && !IsVerdict(joined.status())) return joined.status();
    if (!joined.ok()) {
      verdict = joined.status();
      return absl::OkStatus();
    }
    if (joined->has_value()) {
      begun.upload = **joined;
      return absl::OkStatus();
    }
    LORRY_ASSIGN_OR_RETURN(room, MakeRoom(draft, news, adapter, run->owner, args));
    if (!room) return absl::OkStatus();
    Upload& upload = begun.upload;
    begun.fresh = true;
    LORRY_ASSIGN_OR_RETURN(const std::string id, NewUploadId());
    LORRY_ASSIGN_OR_RETURN(const std::string blob, NewBlobKey(draft));
    upload = Upload{.id = UploadId(id),
                    .key = args.key,
                    .attempt = args.attempt,
                    .state = UploadState::kOpen,
                    .why = absl::OkStatus(),
                    .image_bytes = args.image_bytes,
                    .header_bytes = args.header_bytes,
                    .header_sha256 = args.header_sha256,
                    .config_json = args.config_json,
                    .expected_digest = args.expected_digest,
                    .keep = args.keep,
                    .owner = run->owner,
                    .blob = BlobKey(blob),
                    .begun_at_ms = options_.now_unix_ms()};
    draft.Put(keys::OfOpenUpload(upload.id), upload);
    draft.Put(keys::OfAttempt(args.key), AttemptMark{.attempt = args.attempt, .upload = upload.id});
    draft.Put(keys::OfBlob(upload.blob),
              Blob{.key = upload.blob, .state = BlobState::kStaged, .bytes = args.image_bytes});
    return absl::OkStatus();
  };
  do {
    LORRY_RETURN_IF_ERROR(Transact(begin));
  } while (!room);
  if (!verdict.ok()) return verdict;
  return begun;
}

absl::Status Catalog::End(Draft& draft, News& news, Upload upload, const absl::Status& why) {
  upload.state = UploadState::kDead;
  upload.why = why;
  upload.ended_at_ms = options_.now_unix_ms();
  draft.Delete(keys::OfOpenUpload(upload.id));
  draft.Delete(keys::OfLedger(upload.id));
  draft.Put(keys::OfEndedUpload(upload.id), upload);
  LORRY_RETURN_IF_ERROR(RetireBlob(draft, upload.blob, /*keep_ms=*/0));
  news.ended.push_back(std::move(upload));
  return absl::OkStatus();
}

absl::Status Catalog::EndUploadsOf(Draft& draft, News& news, const AdapterName& adapter,
                                   const absl::Status& why) {
  LORRY_ASSIGN_OR_RETURN(const std::vector<Upload> open, ListOpenUploads());
  for (const Upload& upload : open) {
    if (upload.key.adapter == adapter) LORRY_RETURN_IF_ERROR(End(draft, news, upload, why));
  }
  return absl::OkStatus();
}

absl::StatusOr<Upload> Catalog::GetUpload(const UploadId& id) {
  Draft draft(store_);
  LORRY_ASSIGN_OR_RETURN(std::optional<Upload> upload, FindUpload(draft, id));
  if (!upload.has_value()) return NoSuchUpload(id);
  return *std::move(upload);
}

absl::Status Catalog::EndUpload(const UploadId& id, const absl::Status& why) {
  return Transact([&](Draft& draft, News& news) -> absl::Status {
    LORRY_ASSIGN_OR_RETURN(std::optional<Upload> upload, FindUpload(draft, id));
    if (!upload.has_value()) return NoSuchUpload(id);
    if (upload->state != UploadState::kOpen) return absl::OkStatus();
    return End(draft, news, *std::move(upload), why);
  });
}

absl::StatusOr<Version> Catalog::StoreVersion(const UploadId& id, const CheckedImage& image) {
  Version version;
  absl::Status verdict;
  LORRY_RETURN_IF_ERROR(Transact([&](Draft& draft, News& news) -> absl::Status {
    verdict = absl::OkStatus();
    LORRY_ASSIGN_OR_RETURN(std::optional<Upload> upload, FindUpload(draft, id));
    if (!upload.has_value()) return NoSuchUpload(id);
    if (upload->state == UploadState::kDead) {
      verdict = upload->why;
      return absl::OkStatus();
    }
    if (upload->state == UploadState::kStored) {
      LORRY_ASSIGN_OR_RETURN(version, GetVersion(upload->key));
      return absl::OkStatus();
    }
    absl::StatusOr<Version> published = Publish(draft, news, *upload, image);
    if (published.ok()) {
      version = *std::move(published);
      return absl::OkStatus();
    }
    if (!IsVerdict(published.status())) return published.status();
    verdict = published.status();
    return End(draft, news, *std::move(upload), verdict);
  }));
  if (!verdict.ok()) return verdict;
  return version;
}

absl::StatusOr<std::vector<Upload>> Catalog::ListOpenUploads() {
  return ListRecords<Upload>(store_, keys::kOpenUploads);
}

// Gives its verdict before it writes anything: the caller then ends the upload on the same draft.
absl::StatusOr<Version> Catalog::Publish(Draft& draft, News& news, Upload upload,
                                         const CheckedImage& image) {
  LORRY_ASSIGN_OR_RETURN(Adapter adapter, NeedAdapter(draft, upload.key.adapter));
  LORRY_RETURN_IF_ERROR(CheckPlace(draft, adapter, upload.key));
  if (!upload.expected_digest.empty() && upload.expected_digest != image.digest) {
    return Error(absl::StatusCode::kInvalidArgument, "DIGEST_MISMATCH",
                 absl::StrCat("the bytes and config of ", ToString(upload.key), " have digest ",
                              image.digest.value, ", not ", upload.expected_digest.value,
                              " as announced; nothing was stored"));
  }
  LORRY_ASSIGN_OR_RETURN(std::optional<Version> version,
                         draft.Get<Version>(keys::OfVersion(upload.key)));
  const bool again = version.has_value();
  if (again && version->digest != image.digest) {
    return Conflict(upload.key, "is stored with another digest");
  }
  if (!again) {
    LORRY_ASSIGN_OR_RETURN(const uint64_t revision, draft.GetNumber(keys::kRevision));
    version = Version{.key = upload.key,
                      .digest = image.digest,
                      .image_bytes = upload.image_bytes,
                      .config_json = upload.config_json,
                      .canonical_config = image.canonical_config,
                      .traits = image.traits,
                      .stored_at_ms = options_.now_unix_ms(),
                      .revision = revision + 1,
                      .blob = upload.blob,
                      .keep = upload.keep};
    LORRY_RETURN_IF_ERROR(ClaimEngineNames(draft, *version));
    draft.Put(keys::OfVersion(upload.key), *version);
    draft.Put(keys::OfBlob(upload.blob),
              Blob{.key = upload.blob, .state = BlobState::kLive, .bytes = upload.image_bytes});
    LORRY_ASSIGN_OR_RETURN(std::optional<Run> run,
                           draft.Get<Run>(keys::OfRun(upload.key.adapter, upload.key.run)));
    run->newest = upload.key.number.value;
    draft.Put(keys::OfRun(upload.key.adapter, upload.key.run), *run);
    adapter.stored_bytes += upload.image_bytes;
    ++adapter.versions;
    draft.Put(keys::OfAdapter(adapter.name), adapter);
    LORRY_ASSIGN_OR_RETURN(const uint64_t bytes, draft.GetNumber(keys::kBytes));
    LORRY_ASSIGN_OR_RETURN(const uint64_t count, draft.GetNumber(keys::kVersionCount));
    draft.PutNumber(keys::kBytes, bytes + upload.image_bytes);
    draft.PutNumber(keys::kVersionCount, count + 1);
    news.changes.push_back({.kind = Change::Kind::kVersionStored, .key = upload.key, .alias = {}});
    LORRY_RETURN_IF_ERROR(DropOld(draft, news, adapter));
  } else {
    if (upload.keep) Keep(draft, news, *version);
    LORRY_RETURN_IF_ERROR(RetireBlob(draft, upload.blob, /*keep_ms=*/0));
  }
  upload.state = UploadState::kStored;
  upload.ended_at_ms = options_.now_unix_ms();
  draft.Delete(keys::OfOpenUpload(upload.id));
  draft.Delete(keys::OfLedger(upload.id));
  draft.Put(keys::OfEndedUpload(upload.id), upload);
  return *std::move(version);
}

// Who publishes a stored version again may keep it, as one whose checkpoint is written later does.
void Catalog::Keep(Draft& draft, News& news, Version& version) {
  if (version.keep) return;
  version.keep = true;
  draft.Put(keys::OfVersion(version.key), version);
  news.changes.push_back({.kind = Change::Kind::kVersionStored, .key = version.key, .alias = {}});
}

// Both renderings, because nobody here knows which engines will serve it.
absl::Status Catalog::ClaimEngineNames(Draft& draft, const Version& version) {
  for (const fleet::Render render : {fleet::Render::kPlain, fleet::Render::kRsloraFolded}) {
    const EngineName name = options_.engine_name(version.key, version.digest, render);
    const std::string content =
        absl::StrCat(version.digest.value, " ", ToAbsl(fleet::ToString(render)));
    LORRY_ASSIGN_OR_RETURN(const auto owner, draft.GetText(keys::OfEngineName(name)));
    if (owner.has_value() && *owner != content) {
      return Error(absl::StatusCode::kAlreadyExists, "ENGINE_NAME_COLLISION",
                   absl::StrCat("the engine name ", name.value,
                                " already means other content; publish the next number"));
    }
  }
  for (const fleet::Render render : {fleet::Render::kPlain, fleet::Render::kRsloraFolded}) {
    draft.PutText(keys::OfEngineName(options_.engine_name(version.key, version.digest, render)),
                  absl::StrCat(version.digest.value, " ", ToAbsl(fleet::ToString(render))));
  }
  return absl::OkStatus();
}

}  // namespace lorry::store
