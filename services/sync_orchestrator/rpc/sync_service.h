// lorry.sync.v1.SyncService over the orchestrator: parse, validate, call, convert.
//
// Attach, WatchSync and Watch are callback streams that never block; the rest are synchronous and
// wait for the machine within their deadline. Owned by main, outlives the server.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lib/rpc/gate.h"
#include "lib/rpc/stream.h"
#include "lib/runtime/loop.h"
#include "lorry/sync/v1/sync.grpc.pb.h"
#include "services/sync_orchestrator/driver/orchestrator.h"
#include "services/sync_orchestrator/rpc/store_link.h"
#include "services/sync_orchestrator/rpc/sync_messages.h"

namespace lorry::sync {

using SyncServiceBase =
    v1::SyncService::WithCallbackMethod_Attach<v1::SyncService::WithCallbackMethod_WatchSync<
        v1::SyncService::WithRawCallbackMethod_Watch<v1::SyncService::Service>>>;

class SyncService final : public SyncServiceBase {
 public:
  // All outlive the service. `cluster`: what AdoptFleet must repeat. `version`: what GetStatus says
  // of this program.
  SyncService(rpc::Gate& gate, Orchestrator& orchestrator, StoreLink& store, const Clock& clock,
              std::string cluster, std::string version);
  ~SyncService() override;

  grpc::ServerBidiReactor<v1::AttachRequest, v1::AttachResponse>* Attach(
      grpc::CallbackServerContext* context) override;
  grpc::ServerWriteReactor<v1::WatchSyncResponse>* WatchSync(
      grpc::CallbackServerContext* context, const v1::WatchSyncRequest* request) override;
  // Raw, so that all who watch a pool are sent the same bytes.
  grpc::ServerWriteReactor<grpc::ByteBuffer>* Watch(grpc::CallbackServerContext* context,
                                                    const grpc::ByteBuffer* request) override;

  grpc::Status Resolve(grpc::ServerContext* context, const v1::ResolveRequest* request,
                       v1::ResolveResponse* response) override;
  grpc::Status SetOverride(grpc::ServerContext* context, const v1::SetOverrideRequest* request,
                           v1::SetOverrideResponse* response) override;
  grpc::Status MarkMember(grpc::ServerContext* context, const v1::MarkMemberRequest* request,
                          v1::MarkMemberResponse* response) override;
  grpc::Status LiftVerdict(grpc::ServerContext* context, const v1::LiftVerdictRequest* request,
                           v1::LiftVerdictResponse* response) override;
  grpc::Status AdoptFleet(grpc::ServerContext* context, const v1::AdoptFleetRequest* request,
                          v1::AdoptFleetResponse* response) override;
  grpc::Status GetStatus(grpc::ServerContext* context, const v1::GetStatusRequest* request,
                         v1::GetStatusResponse* response) override;

  absl::StatusOr<v1::GetStatusResponse> StatusNow(const std::string& pool,
                                                  const std::string& adapter, Tick deadline);
  Orchestrator& orchestrator() { return orchestrator_; }

 private:
  class AttachStream;
  class WatchSyncStream;
  class WatchStream;

  absl::StatusOr<VersionKey> CompleteVersion(const common::v1::VersionRef& ref) const;
  template <typename Question>
  absl::StatusOr<Reply> AskUntilHeard(Tick deadline, Question ask);
  PoolName CompletePool(const std::string& pool, const AdapterName& adapter) const;
  void AddWatcher(std::weak_ptr<WatchStream> watcher);
  void Refresh();
  void ShowWatchers();
  v1::GetStatusResponse Describe(const Status& status, const std::string& pool,
                                 const std::string& adapter) const;

  rpc::Gate& gate_;
  Orchestrator& orchestrator_;
  StoreLink& store_;
  const Clock& clock_;
  const std::string cluster_;
  const std::string version_;
  Mutex mutex_;
  std::vector<std::weak_ptr<WatchStream>> watchers_ LORRY_GUARDED_BY(mutex_);
  runtime::Loop loop_;  // refreshes Watch streams
};

}  // namespace lorry::sync
