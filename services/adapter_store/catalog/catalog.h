// The catalogue: the store's truth about adapters, runs, uploads, versions, aliases, holders and
// blobs.
//
// Every method is one transaction over kv::Store (or reads one state of it) and blocks as long as
// that does. What a method has answered with OK is durable. Thread-safe: one writer at a time, and
// commits carry conditions on what they read. It knows nothing of bytes on disk or in flight;
// images/ keeps those in step and is told, by Observer, which uploads have ended.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/mutex.h"
#include "lib/fleet/engine_name.h"
#include "lib/kv/store.h"
#include "services/adapter_store/catalog/records.h"

namespace lorry::store {

class Draft;

// Limits of names and lists that a caller chooses.
inline constexpr size_t kRequestIdBytesMax = 64;
// Three copies with JSON escapes must fit one transaction of 1 MiB; the longest seen has 100 KB.
inline constexpr size_t kConfigBytesMax = 128 << 10;
inline constexpr size_t kHolderBytesMax = 128;
inline constexpr size_t kHoldersMax = 1'000;
inline constexpr size_t kAliasesMax = 1'000;  // of one adapter
inline constexpr size_t kRunsListed = 100;
// Each open upload holds disk space and a mapping; ranks of one attempt share one. A publisher whose
// name is known may have as many as are left for the others: alone half of all, two a third each.
inline constexpr size_t kOpenUploadsMax = 256;
// When a quota asks for room, these of the current run stay: a trainer may resume from any of them.
inline constexpr size_t kNewestKept = 4;
// What an alias is called among the holders of a version: "alias:eval".
inline constexpr std::string_view kAliasHolder = "alias:";

struct CatalogOptions {
  uint64_t total_bytes_max = 0;    // images of all adapters, open uploads included; 0: no limit
  uint64_t adapter_bytes_max = 0;  // of one adapter whose policy sets no quota; 0: no limit
  // The newest versions of an adapter that stay, where its policy does not say: at 200 MB each some
  // 6 GB, far more than engines hold. 0: all.
  uint32_t store_keep = 32;
  uint64_t log_revisions_max = 100'000;     // some 200 bytes each
  int64_t ticket_life_ms = 600'000;         // a deleted image stays readable for so long
  int64_t dead_upload_kept_ms = 3'600'000;  // ranks that come late learn why it ended
  std::function<int64_t()> now_unix_ms = [] {
    return std::chrono::duration_cast<std::chrono::milliseconds>(
               std::chrono::system_clock::now().time_since_epoch())
        .count();
  };
  decltype(&fleet::MakeEngineName) engine_name = &fleet::MakeEngineName;  // tests plant collisions
};

// Told after the commit, without any lock held, on the committing thread. Must not block.
class Observer {
 public:
  virtual ~Observer() = default;
  virtual void OnChanged(uint64_t revision) = 0;
  virtual void OnUploadEnded(const Upload& upload) = 0;  // DEAD; STORED is its committer's to know
  virtual void OnEvicted(int versions) = 0;              // the store deleted them by itself
};

struct OpenRunArgs {
  AdapterName adapter;
  std::optional<VersionKey> resume_from;  // run 0: the current one
  std::optional<uint64_t> expected_run;
  std::string request_id;  // may be empty
  Principal principal = {};
};

struct BeginUploadArgs {
  VersionKey key;
  uint64_t attempt = 0;
  uint64_t image_bytes = 0;
  uint64_t header_bytes = 0;
  std::string header_sha256;  // hex
  std::string config_json;
  std::string canonical_config;
  Digest expected_digest;  // may be empty
  bool keep = false;
  Principal principal = {};
};

struct BegunUpload {
  std::optional<Version> stored;  // the content is there already; `upload` says nothing then
  Upload upload;
  bool fresh = false;  // false: joined
};

// What a check found out about an image.
struct CheckedImage {
  Digest digest;
  std::string canonical_config;
  fleet::VersionTraits traits;
};

struct DeletedAdapter {
  uint32_t versions = 0;
  uint64_t bytes = 0;
};

// Why an adapter's versions are stored; each counts once, for the first reason that applies.
struct Retention {
  uint32_t store_keep = 0;  // in force; 0: all stay
  uint32_t newest = 0;      // among the newest `store_keep`
  uint32_t aliased = 0, held = 0, kept = 0;
  uint32_t leaving = 0;  // with the next version that is published
};

struct Page {
  std::vector<Version> versions;
  std::string next;  // empty: the last page
};

// A consistent picture of everything that a watcher follows.
struct Picture {
  uint64_t revision = 0;
  std::vector<Adapter> adapters;
  std::vector<Version> versions;
  std::vector<Alias> aliases;
  std::optional<HolderMark> remembered;  // of whoever watches; none: it never held anything
};

struct Totals {
  uint64_t versions = 0, stored_bytes = 0, open_uploads = 0, open_bytes = 0;
};

class Catalog {
 public:
  static absl::StatusOr<std::unique_ptr<Catalog>> Open(kv::Store& store, CatalogOptions options);
  // Before the first call from another thread; outlives the catalogue.
  void SetObserver(Observer* observer) { observer_ = observer; }

  // Runs and adapters.
  absl::StatusOr<Run> OpenRun(const OpenRunArgs& args);
  absl::StatusOr<Adapter> SetAdapter(const AdapterName& name, Policy policy,
                                     std::optional<uint64_t> expected_generation);
  absl::StatusOr<Adapter> GetAdapter(const AdapterName& name);
  absl::StatusOr<Adapter> ArchiveAdapter(const AdapterName& name, bool archived);
  // ADAPTER_NOT_EMPTY; IN_USE names who holds which of its versions.
  absl::StatusOr<DeletedAdapter> DeleteAdapter(const AdapterName& name, bool with_versions);
  absl::StatusOr<Retention> RetentionOf(const Adapter& adapter);
  absl::StatusOr<std::vector<Run>> ListRuns(const AdapterName& name);  // newest first, kRunsListed
  // By name, those after `after`.
  absl::StatusOr<std::vector<Adapter>> ListAdapters(std::string_view after, size_t limit);

  // Uploads.
  absl::StatusOr<BegunUpload> BeginUpload(const BeginUploadArgs& args);
  absl::StatusOr<Upload> GetUpload(const UploadId& id);
  // OK also when it has ended otherwise already.
  absl::Status EndUpload(const UploadId& id, const absl::Status& why);
  // The end of an upload: visible and announced, or (same digest stored already) that version.
  // VERSION_CONFLICT, VERSION_TOO_OLD, RUN_FENCED, DIGEST_MISMATCH, ENGINE_NAME_COLLISION end it as
  // dead. The blob is sealed and its leaves are kept (PutLeaves) before.
  absl::StatusOr<Version> StoreVersion(const UploadId& id, const CheckedImage& image);
  absl::StatusOr<std::vector<Upload>> ListOpenUploads();

  // Versions; run 0 in a key means the adapter's current run, except for DeleteVersion.
  absl::StatusOr<Version> GetVersion(const VersionKey& key);
  absl::StatusOr<std::vector<std::string>> HoldersOf(const VersionKey& key);
  absl::StatusOr<Page> ListVersions(const AdapterName& adapter, RunId run, size_t limit,
                                    const std::string& page_token);
  absl::Status DeleteVersion(const VersionKey& key);

  // Aliases and holders.
  absl::StatusOr<Alias> SetAlias(const AdapterName& adapter, const AliasName& name,
                                 std::optional<VersionKey> version,
                                 std::optional<uint64_t> expected_generation);
  // Also one that was removed (without a version). NOT_FOUND when there never was one.
  absl::StatusOr<Alias> GetAlias(const AdapterName& adapter, const AliasName& name);
  absl::StatusOr<std::vector<Alias>> ListAliases(const AdapterName& adapter);
  absl::StatusOr<std::vector<VersionKey>> SetHolds(const std::string& holder, HolderMark mark,
                                                   std::vector<VersionKey> versions);

  // Blobs, for images/ alone.
  absl::Status PutLeaves(const BlobKey& blob, std::string_view leaves);
  absl::StatusOr<std::string> GetLeaves(const BlobKey& blob);
  absl::StatusOr<std::vector<Blob>> ListBlobs();
  // Whether the key is of this catalogue, and not of another instance.
  bool HasNamed(const BlobKey& key) const;
  // Those that are DELETING, by an index.
  absl::StatusOr<std::vector<Blob>> ListDoomedBlobs();
  // Puts one that is DELETING into that index, where the store's first versions did not.
  absl::Status IndexDoomedBlob(const BlobKey& blob);
  // Of one that is DELETING: at most as long as tickets live from now, where a clock that ran ahead
  // has put it off for longer.
  absl::Status ShortenWait(const Blob& blob);
  absl::Status ForgetBlob(const BlobKey& blob);  // after its file is gone
  // Which ranges of an open upload are known to be on disk, in the caller's own words.
  absl::Status PutLedger(const UploadId& id, std::string ledger);
  absl::StatusOr<std::string> GetLedger(const UploadId& id);  // empty when there is none

  // Changes.
  absl::StatusOr<uint64_t> Revision();
  absl::StatusOr<Picture> TakePicture(std::string_view holder = {});
  // The last set of the holder that was accepted; none: none ever.
  absl::StatusOr<std::optional<HolderMark>> Remembered(std::string_view holder);
  // Random, of the data directory: another one counts its revisions anew.
  const std::string& instance() const { return instance_; }
  // Visits the revisions after `from`, in order, at most `limit`. OUT_OF_RANGE REVISION_COMPACTED.
  absl::Status ReadLog(
      uint64_t from, size_t limit,
      absl::FunctionRef<void(uint64_t revision, const std::vector<Change>& changes)> visit);

  // Writes something that nobody reads: whether the store can write at all.
  absl::Status ProveWritable();
  // Housekeeping: forgets dead uploads and log entries that are old enough, and attempts of earlier
  // runs.
  absl::Status Tidy();
  absl::StatusOr<Totals> Count();

 private:
  Catalog(kv::Store& store, CatalogOptions options) : store_(store), options_(std::move(options)) {}

  // What a transaction tells the observer once it is committed.
  struct News {
    std::vector<Change> changes;
    std::vector<Upload> ended;
    int evicted = 0;  // versions that the store itself deletes
  };
  // Runs `decide` on fresh drafts until one commits; an error of `decide` discards the draft and is
  // passed on. Then the observer learns the news.
  using Decide = absl::FunctionRef<absl::Status(Draft&, News&)>;
  absl::Status Transact(Decide decide) LORRY_EXCLUDES(writer_);
  absl::Status Announce(Draft& draft, News& news);

  std::string BlobPrefix() const;
  absl::StatusOr<std::string> NewBlobKey(Draft& draft);
  absl::StatusOr<Adapter> FindOrNew(Draft& draft, const AdapterName& name);
  absl::Status CheckInService(const Adapter& adapter);
  absl::Status CheckDeletable(const Adapter& adapter, bool with_versions);
  absl::StatusOr<size_t> ForgetSome(Draft& draft, const AdapterName& name, size_t limit);
  absl::Status Forget(Draft& draft, News& news, const Adapter& adapter);
  absl::StatusOr<Adapter> NeedAdapter(Draft& draft, const AdapterName& name);
  absl::StatusOr<VersionKey> Resolve(VersionKey key);
  absl::Status NoSuchAdapter(const AdapterName& name);
  absl::Status NoSuchVersion(const VersionKey& key);

  absl::Status ListOfEarlierRuns(int64_t old, std::vector<std::string>& forget);
  absl::Status FenceRun(Draft& draft, News& news, const AdapterName& adapter, RunId opened);
  absl::Status End(Draft& draft, News& news, Upload upload, const absl::Status& why);
  absl::Status EndUploadsOf(Draft& draft, News& news, const AdapterName& adapter,
                            const absl::Status& why);
  absl::Status CheckPlace(Draft& draft, const Adapter& adapter, const VersionKey& key);
  absl::StatusOr<std::optional<Version>> AlreadyStored(Draft& draft, const BeginUploadArgs& args);
  absl::StatusOr<std::optional<Upload>> JoinOrFence(Draft& draft, News& news,
                                                    const BeginUploadArgs& args);
  absl::StatusOr<bool> MakeRoom(Draft& draft, News& news, Adapter& adapter,
                                const std::string& owner, const BeginUploadArgs& args);
  absl::StatusOr<std::vector<Version>> Expendable(const Adapter& adapter);
  uint32_t StoreKeepOf(const Adapter& adapter) const;
  absl::Status DropOld(Draft& draft, News& news, Adapter& adapter);
  void Keep(Draft& draft, News& news, Version& version);
  absl::Status ClaimEngineNames(Draft& draft, const Version& version);
  absl::StatusOr<Version> Publish(Draft& draft, News& news, Upload upload,
                                  const CheckedImage& image);
  // Who holds which versions of an adapter: "alias:eval", "orchestrator:prod".
  absl::StatusOr<std::map<VersionKey, std::vector<std::string>>> Holds(const AdapterName& adapter);
  absl::Status Remove(Draft& draft, News& news, Adapter& adapter, const Version& version);
  absl::Status RetireBlob(Draft& draft, const BlobKey& key, int64_t keep_ms);

  kv::Store& store_;  // outlives the catalogue
  const CatalogOptions options_;
  Observer* observer_ = nullptr;
  std::string instance_;  // constant after Open
  Mutex writer_;
};

}  // namespace lorry::store
