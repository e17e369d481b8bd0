// Open uploads: what is true of them only while the process lives, kept in step with the catalogue.
//
// Begin records an upload, allocates its file, maps it; transports write ranges through a
// PutTarget; Commit checks the bytes on a pool of its own, seals the file and publishes. Two sweeps
// come from the store's housekeeping thread: idle uploads die, and every 64 MiB of arrived bytes
// are synced and then written into a ledger, so that after a crash an upload goes on from what is
// known to be on disk. Bytes that no ledger names must come again; an upload's file belongs to one
// attempt, so no image can mix two. Thread-safe; calls block on files and the catalogue.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/clock.h"
#include "lib/base/mutex.h"
#include "lib/blob/store.h"
#include "lib/runtime/executor.h"
#include "lib/transfer/put_target.h"
#include "lib/transfer/server.h"
#include "services/adapter_store/catalog/catalog.h"
#include "services/adapter_store/images/check.h"
#include "services/adapter_store/images/piece_shares.h"

namespace lorry::store {

struct UploadsOptions {
  int64_t idle_deadline_ms = 600'000;  // the life of a ticket
  // Rewritten pages cost the disk twice; every 64 MiB is a twentieth of a second of sending.
  uint64_t ledger_every_bytes = uint64_t{64} << 20;
  size_t pieces_max = PieceShares::kPiecesMax;  // over all uploads
  int check_threads = 2;                        // each reads an image at memory speed
  // One became a version, so long after it was begun. Must not block.
  std::function<void(int64_t took_ms)> on_stored = [](int64_t) {};
  // One is dead. Must not block.
  std::function<void(std::string_view reason)> on_dead = [](std::string_view) {};
  // One has begun to take ranges. Must not block.
  std::function<void(const Upload&)> on_opened = [](const Upload&) {};
};

struct BeginRequest {
  VersionKey key;
  uint64_t attempt = 0;
  std::string header;
  std::string config_json;
  uint64_t image_bytes = 0;
  Digest expected_digest;
  bool keep = false;
  Principal principal = {};
};

struct BeginReply {
  std::optional<Version> stored = {};
  Upload upload = {};
  std::vector<transfer::Range> missing = {};
  std::vector<transfer::Range> in_flight = {};
};

struct Standing {
  Upload upload;
  bool checking = false;
  std::vector<transfer::Range> missing;
  std::vector<transfer::Range> in_flight;  // of `missing`: somebody is sending them
  std::optional<Version> version;          // STORED, and not deleted since
};

class Uploads {
 public:
  // Catalogue, blobs and clock outlive it.
  Uploads(Catalog& catalog, blob::Store& blobs, const Clock& clock, UploadsOptions options);
  ~Uploads() { Stop(); }
  // Takes up the uploads that were open when the process ended. Once, before the first call.
  absl::Status Recover();
  // Finishes running checks; later commits are refused. The rest may still be called.
  void Stop() { checks_.Stop(); }
  // Answers all commits that wait, and later ones, with UNAVAILABLE SHUTTING_DOWN.
  void LetGo() LORRY_EXCLUDES(mutex_);

  absl::StatusOr<BeginReply> Begin(const BeginRequest& request);
  // NOT_OWNER of an upload that somebody else began, as the two below.
  absl::StatusOr<Standing> Get(const UploadId& id, const Principal& principal = {});
  absl::Status Abort(const UploadId& id, const Principal& principal = {});
  // Joins the check, or starts it, and waits until `deadline` (on the clock): CHECK_RUNNING then. It
  // goes on without callers, and any later commit learns its outcome.
  absl::StatusOr<Version> Commit(const UploadId& id, Tick deadline,
                                 const Principal& principal = {});

  // Where a transport puts an upload's ranges.
  absl::StatusOr<std::shared_ptr<transfer::PutTarget>> TargetOf(const UploadId& id);

  // The image that `blob` will be, as far as it has arrived; none once all of it is sealed.
  std::optional<transfer::GetSource> Coming(const BlobKey& blob) const LORRY_EXCLUDES(mutex_);

  // From the catalogue's observer.
  void OnUploadEnded(const Upload& upload) LORRY_EXCLUDES(mutex_);
  // Expiry and ledgers, once.
  void Sweep();

 private:
  struct Check;
  struct Live;

  std::shared_ptr<Live> Find(const UploadId& id) const LORRY_EXCLUDES(mutex_);
  std::shared_ptr<Live> FindOrAdd(const Upload& upload) LORRY_EXCLUDES(mutex_);
  void Drop(const UploadId& id) LORRY_EXCLUDES(mutex_);
  std::vector<std::shared_ptr<Live>> All() const LORRY_EXCLUDES(mutex_);

  absl::Status OpenFile(const std::shared_ptr<Live>& live);
  absl::Status Resume(const std::shared_ptr<Live>& live);
  absl::Status PutHeader(Live& live, std::string_view header);
  void SetTarget(const std::shared_ptr<Live>& live, const std::shared_ptr<blob::Staging>& staging,
                 transfer::RangeSet received);
  absl::StatusOr<Version> Ended(const UploadId& id, const Principal& principal);
  absl::StatusOr<std::shared_ptr<Check>> StartCheck(const std::shared_ptr<Live>& live);
  absl::StatusOr<Version> RunCheck(const std::shared_ptr<Live>& live);
  absl::StatusOr<CheckOutcome> CheckBytes(Live& live, std::span<const std::byte> image);
  absl::StatusOr<Version> Publish(const Live& live, const absl::Status& sealed,
                                  const CheckOutcome& checked);
  absl::Status EndWith(const UploadId& id, const absl::Status& why);  // returns `why`
  absl::Status WriteLedger(Live& live);
  absl::Status SweepOne(const std::shared_ptr<Live>& live);

  Catalog& catalog_;
  blob::Store& blobs_;
  const Clock& clock_;
  const UploadsOptions options_;
  const std::shared_ptr<PieceShares> shares_;
  std::atomic<bool> leaving_ = false;
  mutable Mutex mutex_;
  std::map<UploadId, std::shared_ptr<Live>> live_ LORRY_GUARDED_BY(mutex_);
  runtime::Executor checks_;  // last: its threads use the rest
};

}  // namespace lorry::store
