// lorry.store.v1.StoreService: parse, validate, call, convert. Unary calls run on threads of their
// own and may block; Watch is a stream served by WatchHub. Thread-safe.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lib/base/mutex.h"
#include "lib/rpc/gate.h"
#include "lorry/store/v1/store.grpc.pb.h"
#include "services/adapter_store/catalog/catalog.h"
#include "services/adapter_store/images/transfers.h"
#include "services/adapter_store/images/uploads.h"
#include "services/adapter_store/rpc/upload_hub.h"
#include "services/adapter_store/rpc/watch_hub.h"

namespace lorry::store {

class StoreService final
    : public v1::StoreService::WithCallbackMethod_Watch<
          v1::StoreService::WithCallbackMethod_FollowUploads<v1::StoreService::Service>> {
 public:
  // What it stands on; all outlive the server that it is registered with.
  struct Parts {
    rpc::Gate& gate;
    Catalog& catalog;
    Uploads& uploads;
    Transfers& transfers;
    WatchHub& hub;
    UploadHub& upload_hub;
    int64_t upload_idle_deadline_ms;
    std::string lorry_version;
  };
  explicit StoreService(Parts parts) : parts_(std::move(parts)) {}
  // An address that stands for the one under which the caller reached this service.
  static constexpr std::string_view kWhereTheCallerDialled = "grpc://";
  // Where ranges may be sent to and fetched from, best first. Calls that came before, which a store
  // that has just started gets from everybody who waited for it, are UNAVAILABLE.
  void SetAddresses(std::vector<std::string> addresses) LORRY_EXCLUDES(mutex_);

 private:
  grpc::Status OpenRun(grpc::ServerContext*, const v1::OpenRunRequest*,
                       v1::OpenRunResponse*) override;
  grpc::Status BeginUpload(grpc::ServerContext*, const v1::BeginUploadRequest*,
                           v1::BeginUploadResponse*) override;
  grpc::Status GetUpload(grpc::ServerContext*, const v1::GetUploadRequest*,
                         v1::GetUploadResponse*) override;
  grpc::Status AbortUpload(grpc::ServerContext*, const v1::AbortUploadRequest*,
                           v1::AbortUploadResponse*) override;
  grpc::Status CommitUpload(grpc::ServerContext*, const v1::CommitUploadRequest*,
                            v1::CommitUploadResponse*) override;
  grpc::Status OpenFetch(grpc::ServerContext*, const v1::OpenFetchRequest*,
                         v1::OpenFetchResponse*) override;
  grpc::Status JoinFanOut(grpc::ServerContext*, const v1::JoinFanOutRequest*,
                          v1::JoinFanOutResponse*) override;
  grpc::ServerWriteReactor<v1::FollowUploadsResponse>* FollowUploads(
      grpc::CallbackServerContext*, const v1::FollowUploadsRequest*) override;
  grpc::ServerWriteReactor<v1::WatchResponse>* Watch(grpc::CallbackServerContext*,
                                                     const v1::WatchRequest*) override;
  grpc::Status GetRevision(grpc::ServerContext*, const v1::GetRevisionRequest*,
                           v1::GetRevisionResponse*) override;
  grpc::Status GetVersion(grpc::ServerContext*, const v1::GetVersionRequest*,
                          v1::GetVersionResponse*) override;
  grpc::Status ListVersions(grpc::ServerContext*, const v1::ListVersionsRequest*,
                            v1::ListVersionsResponse*) override;
  grpc::Status DeleteVersion(grpc::ServerContext*, const v1::DeleteVersionRequest*,
                             v1::DeleteVersionResponse*) override;
  grpc::Status SetAdapter(grpc::ServerContext*, const v1::SetAdapterRequest*,
                          v1::SetAdapterResponse*) override;
  grpc::Status GetAdapter(grpc::ServerContext*, const v1::GetAdapterRequest*,
                          v1::GetAdapterResponse*) override;
  grpc::Status ListAdapters(grpc::ServerContext*, const v1::ListAdaptersRequest*,
                            v1::ListAdaptersResponse*) override;
  grpc::Status ArchiveAdapter(grpc::ServerContext*, const v1::ArchiveAdapterRequest*,
                              v1::ArchiveAdapterResponse*) override;
  grpc::Status DeleteAdapter(grpc::ServerContext*, const v1::DeleteAdapterRequest*,
                             v1::DeleteAdapterResponse*) override;
  grpc::Status SetAlias(grpc::ServerContext*, const v1::SetAliasRequest*,
                        v1::SetAliasResponse*) override;
  grpc::Status SetHolds(grpc::ServerContext*, const v1::SetHoldsRequest*,
                        v1::SetHoldsResponse*) override;

  absl::Status CheckAdapterOf(const UploadId& id, const rpc::Call& call);
  absl::StatusOr<v1::Adapter> Describe(const Adapter& adapter);
  absl::StatusOr<std::vector<std::string>> AddressesFor(const grpc::ServerContextBase& caller) const
      LORRY_EXCLUDES(mutex_);

  const Parts parts_;
  mutable Mutex mutex_;
  std::vector<std::string> addresses_ LORRY_GUARDED_BY(mutex_);
};

}  // namespace lorry::store
