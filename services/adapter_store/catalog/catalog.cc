#include "services/adapter_store/catalog/catalog.h"

#include <algorithm>
#include <limits>
#include <random>

#include "absl/strings/str_cat.h"
#include "lib/base/error.h"
#include "lib/base/strings.h"
#include "lib/runtime/fault_point.h"
#include "services/adapter_store/catalog/codec.h"
#include "services/adapter_store/catalog/draft.h"
#include "services/adapter_store/catalog/keys.h"

namespace lorry::store {
namespace {

// With one writer a condition fails only if another process writes as well; then a few tries do.
constexpr int kTriesMax = 10;
// Deletes in one housekeeping transaction: short enough to let publishers in between.
constexpr size_t kTidyBatch = 500;
// Leaves of one entry: 32,768 of them, an image of 32 GiB; half of what a transaction may hold.
constexpr size_t kLeavesChunkBytes = 512 << 10;

}  // namespace

absl::StatusOr<std::unique_ptr<Catalog>> Catalog::Open(kv::Store& store, CatalogOptions options) {
  std::unique_ptr<Catalog> catalog(new Catalog(store, std::move(options)));
  Draft draft(store);
  LORRY_ASSIGN_OR_RETURN(const std::optional<std::string> instance, draft.GetText(keys::kInstance));
  if (instance.has_value()) {
    catalog->instance_ = *instance;
    return catalog;
  }
  // Random, so that ids of a data directory that was lost are never given again.
  std::random_device random;
  catalog->instance_ = absl::StrCat(absl::Hex(random(), absl::kZeroPad8));
  draft.PutText(keys::kInstance, catalog->instance_);
  draft.PutNumber(keys::kLogBegin, 1);
  LORRY_RETURN_IF_ERROR(draft.Commit());
  return catalog;
}

absl::Status Catalog::Transact(Decide decide) {
  News news;
  uint64_t revision = 0;
  {
    MutexLock lock(writer_);
    absl::Status committed;
    for (int tries = 0; tries < kTriesMax; ++tries) {
      news = {};
      committed =
          absl::OkStatus();  // what a decision that writes nothing answers, also a second one
      Draft draft(store_);
      LORRY_RETURN_IF_ERROR(decide(draft, news));
      LORRY_RETURN_IF_ERROR(Announce(draft, news));
      if (draft.empty()) break;
      LORRY_ASSIGN_OR_RETURN(revision, draft.GetNumber(keys::kRevision));
      LORRY_FAULT_POINT("store.catalog.before_commit");
      committed = draft.Commit();
      LORRY_FAULT_POINT("store.catalog.after_commit");
      if (ReasonOf(committed) != "CONDITION_FAILED") break;
    }
    LORRY_RETURN_IF_ERROR(committed);
  }
  if (observer_ == nullptr) return absl::OkStatus();
  for (const Upload& upload : news.ended) observer_->OnUploadEnded(upload);
  if (news.evicted > 0) observer_->OnEvicted(news.evicted);
  if (!news.changes.empty()) observer_->OnChanged(revision);
  return absl::OkStatus();
}

absl::Status Catalog::Announce(Draft& draft, News& news) {
  if (news.changes.empty()) return absl::OkStatus();
  LORRY_ASSIGN_OR_RETURN(const uint64_t last, draft.GetNumber(keys::kRevision));
  draft.PutNumber(keys::kRevision, last + 1);
  draft.Put(keys::OfLog(last + 1), news.changes);
  return absl::OkStatus();
}

std::string Catalog::BlobPrefix() const { return absl::StrCat("b-", instance_, "-"); }

bool Catalog::HasNamed(const BlobKey& key) const { return key.value.starts_with(BlobPrefix()); }

absl::StatusOr<std::string> Catalog::NewBlobKey(Draft& draft) {
  LORRY_ASSIGN_OR_RETURN(const uint64_t last, draft.GetNumber(keys::kNextId));
  draft.PutNumber(keys::kNextId, last + 1);
  return absl::StrCat(BlobPrefix(), last + 1);
}

absl::Status Catalog::RetireBlob(Draft& draft, const BlobKey& key, int64_t keep_ms) {
  LORRY_ASSIGN_OR_RETURN(std::optional<Blob> blob, draft.Get<Blob>(keys::OfBlob(key)));
  if (!blob.has_value()) return absl::OkStatus();
  blob->state = BlobState::kDeleting;
  blob->remove_after_ms = options_.now_unix_ms() + keep_ms;
  draft.Put(keys::OfBlob(key), *blob);
  draft.PutText(keys::OfDoomed(key), "");
  return absl::OkStatus();
}

absl::Status Catalog::PutLeaves(const BlobKey& blob, std::string_view leaves) {
  for (size_t at = 0, chunk = 0; at < leaves.size(); at += kLeavesChunkBytes, ++chunk) {
    const std::string key = keys::LeavesOf(blob) + keys::Ascending(chunk);
    LORRY_RETURN_IF_ERROR(Transact([&](Draft& draft, News&) {
      draft.PutText(key, std::string(leaves.substr(at, kLeavesChunkBytes)));
      return absl::OkStatus();
    }));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> Catalog::GetLeaves(const BlobKey& blob) {
  std::string leaves;
  LORRY_RETURN_IF_ERROR(ForEach(store_, keys::LeavesOf(blob), "",
                                [&](const kv::Entry& entry) -> absl::StatusOr<bool> {
                                  leaves += entry.value;
                                  return true;
                                }));
  return leaves;
}

absl::StatusOr<std::vector<Blob>> Catalog::ListBlobs() {
  return ListRecords<Blob>(store_, keys::kBlobs);
}

absl::StatusOr<std::vector<Blob>> Catalog::ListDoomedBlobs() {
  std::vector<Blob> doomed;
  LORRY_ASSIGN_OR_RETURN(const std::vector<kv::Entry> index, kv::ListAll(store_, keys::kDoomed));
  for (const kv::Entry& entry : index) {
    const BlobKey key(entry.key.substr(std::string_view(keys::kDoomed).size()));
    LORRY_ASSIGN_OR_RETURN(std::optional<Blob> blob, Find<Blob>(store_, keys::OfBlob(key)));
    if (blob.has_value()) doomed.push_back(*std::move(blob));
  }
  return doomed;
}

absl::Status Catalog::IndexDoomedBlob(const BlobKey& blob) {
  return Transact([&](Draft& draft, News&) -> absl::Status {
    LORRY_ASSIGN_OR_RETURN(const auto indexed, draft.GetText(keys::OfDoomed(blob)));
    if (!indexed.has_value()) draft.PutText(keys::OfDoomed(blob), "");
    return absl::OkStatus();
  });
}

absl::Status Catalog::ShortenWait(const Blob& blob) {
  if (blob.remove_after_ms <= options_.now_unix_ms() + options_.ticket_life_ms) {
    return absl::OkStatus();
  }
  return Transact(
      [&](Draft& draft, News&) { return RetireBlob(draft, blob.key, options_.ticket_life_ms); });
}

absl::Status Catalog::ForgetBlob(const BlobKey& blob) {
  LORRY_ASSIGN_OR_RETURN(const std::vector<kv::Entry> leaves,
                         kv::ListAll(store_, keys::LeavesOf(blob)));
  return Transact([&](Draft& draft, News&) {
    for (const kv::Entry& chunk : leaves) draft.Delete(chunk.key);
    draft.Delete(keys::OfBlob(blob));
    draft.Delete(keys::OfDoomed(blob));
    return absl::OkStatus();
  });
}

absl::Status Catalog::PutLedger(const UploadId& id, std::string ledger) {
  return Transact([&](Draft& draft, News&) -> absl::Status {
    LORRY_ASSIGN_OR_RETURN(const auto open, draft.GetText(keys::OfOpenUpload(id)));
    if (open.has_value()) draft.PutText(keys::OfLedger(id), ledger);
    return absl::OkStatus();
  });
}

absl::StatusOr<std::string> Catalog::GetLedger(const UploadId& id) {
  LORRY_ASSIGN_OR_RETURN(const std::optional<kv::Entry> entry, store_.Get(keys::OfLedger(id)));
  return entry.has_value() ? entry->value : std::string();
}

absl::StatusOr<uint64_t> Catalog::Revision() { return Draft(store_).GetNumber(keys::kRevision); }

absl::StatusOr<Picture> Catalog::TakePicture(std::string_view holder) {
  LORRY_ASSIGN_OR_RETURN(const std::unique_ptr<kv::Snapshot> state, store_.TakeSnapshot());
  Picture picture;
  LORRY_ASSIGN_OR_RETURN(const std::optional<kv::Entry> revision, state->Get(keys::kRevision));
  if (revision.has_value()) picture.revision = std::stoull(revision->value);
  LORRY_ASSIGN_OR_RETURN(picture.adapters, ListRecords<Adapter>(*state, keys::kAdapters));
  LORRY_ASSIGN_OR_RETURN(picture.versions, ListRecords<Version>(*state, keys::kVersions));
  LORRY_ASSIGN_OR_RETURN(picture.aliases, ListRecords<Alias>(*state, keys::kAliases));
  std::erase_if(picture.aliases, [](const Alias& alias) { return !alias.version.has_value(); });
  if (holder.empty()) return picture;
  LORRY_ASSIGN_OR_RETURN(const std::optional<kv::Entry> held, state->Get(keys::OfHolder(holder)));
  if (held.has_value()) {
    LORRY_ASSIGN_OR_RETURN(const HolderSet set, Decode<HolderSet>(held->value));
    picture.remembered = set.mark;
  }
  return picture;
}

absl::Status Catalog::ReadLog(uint64_t from, size_t limit,
                              absl::FunctionRef<void(uint64_t, const std::vector<Change>&)> visit) {
  Draft draft(store_);
  LORRY_ASSIGN_OR_RETURN(const uint64_t last, draft.GetNumber(keys::kRevision));
  LORRY_ASSIGN_OR_RETURN(const uint64_t begin, draft.GetNumber(keys::kLogBegin));
  if (from > last || from + 1 < begin) {
    return Error(absl::StatusCode::kOutOfRange, "REVISION_COMPACTED",
                 absl::StrCat("revision ", from, " is outside of the log, which has ", begin,
                              " to ", last, "; watch from 0"));
  }
  uint64_t revision = from;
  return ForEach(store_, keys::kLog, keys::OfLog(from + 1),
                 [&](const kv::Entry& entry) -> absl::StatusOr<bool> {
                   LORRY_ASSIGN_OR_RETURN(const std::vector<Change> changes,
                                          Decode<std::vector<Change>>(entry.value));
                   visit(++revision, changes);
                   return revision - from < limit;
                 });
}

absl::Status Catalog::ProveWritable() {
  return Transact([&](Draft& draft, News&) {
    draft.PutText(keys::kProof, absl::StrCat(options_.now_unix_ms()));
    return absl::OkStatus();
  });
}

// Nobody publishes in an earlier run any more, and who does is refused before either of these is
// looked at. A tombstone stays a while for the repeat of the delete that made it.
absl::Status Catalog::ListOfEarlierRuns(int64_t old, std::vector<std::string>& forget) {
  LORRY_ASSIGN_OR_RETURN(const std::vector<Adapter> adapters,
                         ListRecords<Adapter>(store_, keys::kAdapters));
  for (const Adapter& adapter : adapters) {
    if (adapter.current_run.value == 0) continue;
    const VersionKey newest = {.adapter = adapter.name,
                               .run = RunId(adapter.current_run.value - 1),
                               .number = VersionNumber(std::numeric_limits<uint64_t>::max())};
    LORRY_RETURN_IF_ERROR(ForEach(store_, keys::AttemptsOf(adapter.name), keys::OfAttempt(newest),
                                  [&](const kv::Entry& mark) -> absl::StatusOr<bool> {
                                    forget.push_back(mark.key);
                                    return true;
                                  }));
    LORRY_RETURN_IF_ERROR(
        ForEach(store_, keys::TombstonesOf(adapter.name), keys::OfTombstone(newest),
                [&](const kv::Entry& entry) -> absl::StatusOr<bool> {
                  LORRY_ASSIGN_OR_RETURN(const Tombstone gone, Decode<Tombstone>(entry.value));
                  if (gone.deleted_at_ms <= old) forget.push_back(entry.key);
                  return true;
                }));
  }
  return absl::OkStatus();
}

absl::Status Catalog::Tidy() {
  const int64_t old = options_.now_unix_ms() - options_.dead_upload_kept_ms;
  std::vector<std::string> forget;
  LORRY_ASSIGN_OR_RETURN(const std::vector<Upload> ended,
                         ListRecords<Upload>(store_, keys::kEndedUploads));
  for (const Upload& upload : ended) {
    if (upload.ended_at_ms <= old) forget.push_back(keys::OfEndedUpload(upload.id));
  }
  LORRY_RETURN_IF_ERROR(ListOfEarlierRuns(old, forget));
  bool more = true;
  while (more) {
    LORRY_RETURN_IF_ERROR(Transact([&](Draft& draft, News&) -> absl::Status {
      const size_t batch = std::min(forget.size(), kTidyBatch);
      for (size_t i = 0; i < batch; ++i) draft.Delete(forget[forget.size() - 1 - i]);
      LORRY_ASSIGN_OR_RETURN(const uint64_t last, draft.GetNumber(keys::kRevision));
      LORRY_ASSIGN_OR_RETURN(uint64_t begin, draft.GetNumber(keys::kLogBegin));
      const uint64_t first = begin;
      while (last - begin + 1 > options_.log_revisions_max && begin - first < kTidyBatch) {
        draft.Delete(keys::OfLog(begin++));
      }
      if (begin != first) draft.PutNumber(keys::kLogBegin, begin);
      more = batch == kTidyBatch || begin - first == kTidyBatch;
      return absl::OkStatus();
    }));
    forget.resize(forget.size() - std::min(forget.size(), kTidyBatch));
  }
  return absl::OkStatus();
}

absl::StatusOr<Totals> Catalog::Count() {
  Draft draft(store_);
  Totals totals;
  LORRY_ASSIGN_OR_RETURN(totals.versions, draft.GetNumber(keys::kVersionCount));
  LORRY_ASSIGN_OR_RETURN(totals.stored_bytes, draft.GetNumber(keys::kBytes));
  LORRY_ASSIGN_OR_RETURN(const std::vector<Upload> open, ListOpenUploads());
  for (const Upload& upload : open) totals.open_bytes += upload.image_bytes;
  totals.open_uploads = open.size();
  return totals;
}

}  // namespace lorry::store
