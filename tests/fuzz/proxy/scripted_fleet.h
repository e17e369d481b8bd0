// What a proxy is connected to: an orchestrator whose words come from the input, and a store that is
// a real one until the input says otherwise.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "lib/base/mutex.h"
#include "lib/rpc/server.h"
#include "lorry/store/v1/store.grpc.pb.h"
#include "lorry/sync/v1/sync.grpc.pb.h"

namespace lorry::proxy::fuzz {

class ScriptedFleet final : private sync::v1::SyncService::Service,
                            private store::v1::StoreService::Service {
 public:
  explicit ScriptedFleet(const std::string& store);  // the real one's address
  ~ScriptedFleet() override;
  std::string address() const { return server_->address(); }

  // The orchestrator's next message, to whichever session there is by then.
  void Say(sync::v1::AttachResponse message);
  // What the store answers when it is next asked for a version.
  void Plan(store::v1::OpenFetchResponse manifest);
  // Nothing that was said is left.
  bool is_heard();
  // Forgets what was not said yet.
  void Clear();

 private:
  using AttachStream = grpc::ServerReaderWriter<sync::v1::AttachResponse, sync::v1::AttachRequest>;
  grpc::Status Attach(grpc::ServerContext* context, AttachStream* stream) override;
  grpc::Status OpenFetch(grpc::ServerContext* context, const store::v1::OpenFetchRequest* request,
                         store::v1::OpenFetchResponse* response) override;

  const std::string store_address_;
  const std::unique_ptr<store::v1::StoreService::Stub> store_;
  Mutex mutex_;
  CondVar changed_;
  bool stopping_ LORRY_GUARDED_BY(mutex_) = false;
  std::deque<sync::v1::AttachResponse> words_ LORRY_GUARDED_BY(mutex_);
  std::deque<store::v1::OpenFetchResponse> manifests_ LORRY_GUARDED_BY(mutex_);
  std::unique_ptr<rpc::Access> access_;
  std::optional<rpc::Gate> gate_;
  std::unique_ptr<rpc::Server> server_;
};

}  // namespace lorry::proxy::fuzz
