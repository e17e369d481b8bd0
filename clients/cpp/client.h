// One connection to an adapter-store and, where named, to a sync-orchestrator.
//
// Thread-safe; connects on first use. Every call blocks, for at most `call_timeout_ms` unless it
// says otherwise. Errors carry the services' reasons (docs/ERRORS.md); UNAVAILABLE without a reason
// means that nobody answered at the address which the message names.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "clients/cpp/adapter_image.h"
#include "clients/cpp/image_mover.h"
#include "lib/rpc/channel.h"
#include "lorry/engine/v1/proxy.pb.h"
#include "lorry/store/v1/store.pb.h"
#include "lorry/sync/v1/sync.pb.h"

namespace lorry::client {

struct ConnectOptions {
  std::string store;              // host:port; empty: calls of the store fail
  std::string orchestrator = {};  // host:port; empty: calls of the orchestrator fail
  std::string token = {};         // the bearer token that this client shows,
  std::string token_file = {};    // or the file that holds it
  rpc::ClientTls tls = {};
  int64_t call_timeout_ms = 30'000;       // one call, its repetitions included
  int64_t transfer_timeout_ms = 600'000;  // a whole Publish or Export
  // A service that does not answer yet is waited for until a call's timeout; otherwise calls fail
  // once dialing it has failed a few times, within seconds.
  bool wait_for_services = false;
  bool ucx = true;  // move images over shared memory where the store is on this host
};

struct RunRequest {
  std::string adapter;
  std::optional<common::v1::VersionRef> resume_from = {};
  std::optional<uint64_t> expected_run = {};  // compare-and-swap; 0: none yet
};

struct PublishOptions {
  // One incarnation of the publishing process; a higher one ends a lower one. 0: this moment.
  uint64_t attempt = 0;
  std::string expected_digest = {};
  Progress progress = {};
};

// run 0: the adapter's current run.
common::v1::VersionRef MakeRef(const std::string& adapter, uint64_t run, uint64_t number);

class Client {
 public:
  using WatchSyncFn = std::function<void(const lorry::sync::v1::WatchSyncResponse&)>;
  using WatchFn = std::function<bool(const lorry::sync::v1::GetStatusResponse&)>;
  using AwayFn = std::function<void(const absl::Status&)>;

  // INVALID_ARGUMENT when a named file cannot be read.
  static absl::StatusOr<std::unique_ptr<Client>> Connect(ConnectOptions options);
  ~Client();

  // --- The store: versions ---
  absl::StatusOr<store::v1::OpenRunResponse> OpenRun(const RunRequest& request);
  // Uploads and commits; returns the stored version, also where it was stored before.
  absl::StatusOr<common::v1::Version> Publish(const AdapterImage& image,
                                              const common::v1::VersionRef& version,
                                              const PublishOptions& options = {});
  // Writes the version as a PEFT directory: config as published, image with every leaf and the
  // digest verified. ALREADY_EXISTS when the directory holds an adapter and not `replace`.
  absl::StatusOr<common::v1::Version> Export(const common::v1::VersionRef& version,
                                             const std::string& directory, bool replace,
                                             const Progress& progress = {});
  absl::StatusOr<store::v1::GetVersionResponse> GetVersion(const common::v1::VersionRef& version);
  // Newest first, at most `limit` (0: all); run 0: of all runs.
  absl::StatusOr<std::vector<common::v1::Version>> Versions(const std::string& adapter,
                                                            uint64_t run = 0, size_t limit = 0);
  absl::Status Delete(const common::v1::VersionRef& version);
  // How far the store has come, and which Lorry it is.
  absl::StatusOr<store::v1::GetRevisionResponse> StoreRevision();
  // Lets go of all that a holder keeps which will not come back. One that is still there takes its
  // records for lost. ABORTED HOLDS_STALE: it counts higher than a holder that began by now.
  absl::Status ReleaseHolder(const std::string& holder);

  // --- The store: adapters ---
  absl::StatusOr<std::vector<store::v1::Adapter>> Adapters();
  absl::StatusOr<store::v1::GetAdapterResponse> GetAdapter(const std::string& adapter);
  absl::StatusOr<store::v1::Adapter> SetPolicy(const std::string& adapter,
                                               const common::v1::AdapterPolicy& policy,
                                               std::optional<uint64_t> expected_generation = {});
  // Archived: no new run or version, and engines let it go; what is stored stays.
  absl::StatusOr<store::v1::Adapter> ArchiveAdapter(const std::string& adapter, bool archived);
  // FAILED_PRECONDITION while versions exist and not `with_versions`, or while somebody holds one.
  absl::StatusOr<store::v1::DeleteAdapterResponse> DeleteAdapter(const std::string& adapter,
                                                                 bool with_versions);
  // Without a version the alias is removed.
  absl::StatusOr<store::v1::Alias> SetAlias(const std::string& adapter, const std::string& alias,
                                            const std::optional<common::v1::VersionRef>& version,
                                            std::optional<uint64_t> expected_generation = {});

  // --- The orchestrator ---
  absl::StatusOr<lorry::sync::v1::GetStatusResponse> Status(const std::string& pool = "",
                                                            const std::string& adapter = "");
  // Calls `on_status` at every change until it returns false or the stream ends. Where the orchestrator
  // goes away after it has answered, `on_away` is told why, once, and it is dialled again for as long
  // as a call may take.
  absl::Status Watch(const std::string& pool, const WatchFn& on_status, const AwayFn& on_away = {});
  // Follows a version to its terminal state and returns that; dials again while the orchestrator is
  // away or has not heard of the version. DEADLINE_EXCEEDED after `timeout_ms`.
  absl::StatusOr<lorry::sync::v1::WatchSyncResponse> WatchSync(
      const common::v1::VersionRef& version, const std::string& pool, int64_t timeout_ms,
      const WatchSyncFn& on_progress = {});
  absl::StatusOr<lorry::sync::v1::ResolveResponse> Resolve(
      const lorry::sync::v1::ResolveRequest& request);
  // Without a version the pin is lifted.
  absl::StatusOr<lorry::sync::v1::SetOverrideResponse> SetOverride(
      const std::string& adapter, const std::string& pool,
      const std::optional<common::v1::VersionRef>& version);
  // Engines try the version again, whatever they did at it before.
  absl::Status LiftVerdict(const common::v1::VersionRef& version);
  absl::Status MarkMember(const lorry::sync::v1::MarkMemberRequest& request);
  // `newest`: what is not pinned goes on to the newest.
  absl::StatusOr<lorry::sync::v1::AdoptFleetResponse> AdoptFleet(const std::string& cluster,
                                                                 bool newest);

  // --- The proxies, at the admin addresses that Status names ---
  using Members = google::protobuf::RepeatedPtrField<lorry::sync::v1::MemberStatus>;
  // What each of `members` says of itself, in their order. Those that are silent hold the others up
  // for some seconds in all.
  std::vector<absl::StatusOr<engine::v1::GetStatusResponse>> ProxyStatuses(const Members& members);
  struct Explained {
    std::string member;
    engine::v1::ExplainResponse what;
  };
  // Asks every member, until one remembers. NOT_FOUND UNKNOWN_REQUEST when none remembers, naming
  // those that were silent.
  absl::StatusOr<Explained> Explain(const std::string& request_id);

  // The door of `member` admits nothing any more; returns once nothing is in flight there.
  // DEADLINE_EXCEEDED DRAINING: some requests still run after `wait_ms`, and go on; ask again.
  absl::Status Drain(const std::string& member, int64_t wait_ms);

  const ConnectOptions& options() const { return options_; }

 private:
  struct Stubs;  // keeps the generated services out of this header
  explicit Client(ConnectOptions options);
  rpc::ChannelOptions ChannelTo(const std::string& target) const;
  rpc::ChannelOptions ChannelToProxy(const lorry::sync::v1::MemberStatus& member) const;
  absl::StatusOr<store::v1::BeginUploadResponse> BeginUpload(
      const store::v1::BeginUploadRequest& request);
  void PauseBeforeRetry();
  absl::StatusOr<common::v1::Version> Commit(const std::string& upload_id);
  absl::StatusOr<common::v1::Version> UploadOnce(const store::v1::BeginUploadRequest& request,
                                                 const AdapterImage& image,
                                                 const Progress& progress, Tick ends_at);
  absl::StatusOr<store::v1::OpenFetchResponse> OpenFetch(const common::v1::VersionRef& version);

  const ConnectOptions options_;
  std::unique_ptr<Stubs> stubs_;
  ImageMover mover_;
};

}  // namespace lorry::client
