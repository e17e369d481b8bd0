// What a proxy is connected to: an orchestrator whose words come from the input, and a store that is
// a real one until the input says otherwise.
#pragma once

#include <deque>
#include <memory>
#include <string>

#include "lib/base/mutex.h"
#include "lorry/store/v1/store.grpc.pb.h"
#include "lorry/sync/v1/sync.grpc.pb.h"
#include "tests/fuzz/rpc/scripted_service.h"

namespace lorry::proxy::fuzz {

class ScriptedFleet final : private sync::v1::SyncService::Service,
                            private store::v1::StoreService::Service {
 public:
  explicit ScriptedFleet(const std::string& store);  // the real one's address
  ~ScriptedFleet() override;
  std::string address() const { return server_.address(); }

  // The orchestrator's next message, to whichever session there is by then.
  void Say(sync::v1::AttachResponse message);
  // What the store answers when it is next asked for a version.
  void Plan(store::v1::OpenFetchResponse manifest);
  // Nothing that was said is left.
  bool is_heard() { return words_.empty(); }
  // Forgets what was not said yet.
  void Clear();

 private:
  using AttachStream = grpc::ServerReaderWriter<sync::v1::AttachResponse, sync::v1::AttachRequest>;
  grpc::Status Attach(grpc::ServerContext* context, AttachStream* stream) override;
  grpc::Status OpenFetch(grpc::ServerContext* context, const store::v1::OpenFetchRequest* request,
                         store::v1::OpenFetchResponse* response) override;

  const std::string store_address_;
  const std::unique_ptr<store::v1::StoreService::Stub> store_;
  lorry::fuzz::ScriptedWords<sync::v1::AttachResponse> words_;
  Mutex mutex_;
  std::deque<store::v1::OpenFetchResponse> manifests_ LORRY_GUARDED_BY(mutex_);
  lorry::fuzz::OpenServer server_;  // goes first
};

}  // namespace lorry::proxy::fuzz
