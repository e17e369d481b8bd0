// A store as the orchestrator sees it: what its watch says comes from the input.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "lib/base/mutex.h"
#include "lib/rpc/server.h"
#include "lorry/store/v1/store.grpc.pb.h"

namespace lorry::sync::fuzz {

class ScriptedStore final : private store::v1::StoreService::Service {
 public:
  ScriptedStore();
  ~ScriptedStore() override;
  std::string address() const { return server_->address(); }
  // The next message of the watch, whoever follows it by then.
  void Say(store::v1::WatchResponse message);

 private:
  grpc::Status Watch(grpc::ServerContext* context, const store::v1::WatchRequest*,
                     grpc::ServerWriter<store::v1::WatchResponse>* writer) override;
  grpc::Status SetHolds(grpc::ServerContext*, const store::v1::SetHoldsRequest*,
                        store::v1::SetHoldsResponse*) override {
    return grpc::Status::OK;
  }

  Mutex mutex_;
  CondVar changed_;
  bool stopping_ LORRY_GUARDED_BY(mutex_) = false;
  std::deque<store::v1::WatchResponse> messages_ LORRY_GUARDED_BY(mutex_);
  std::unique_ptr<rpc::Access> access_;
  std::optional<rpc::Gate> gate_;
  std::unique_ptr<rpc::Server> server_;
};

}  // namespace lorry::sync::fuzz
