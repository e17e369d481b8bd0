#include "tests/fuzz/proxy/scripted_fleet.h"

#include <utility>

#include "lib/rpc/channel.h"
#include "tests/fuzz/proxy/wiring.h"

namespace lorry::proxy::fuzz {
namespace {

constexpr int64_t kStoreDeadlineMs = 10'000;

}  // namespace

ScriptedFleet::ScriptedFleet(const std::string& store)
    : store_address_(store),
      store_(store::v1::StoreService::NewStub(Dial(store)->Get())),
      server_({static_cast<sync::v1::SyncService::Service*>(this),
               static_cast<store::v1::StoreService::Service*>(this)}) {}

ScriptedFleet::~ScriptedFleet() { words_.Stop(); }

void ScriptedFleet::Say(sync::v1::AttachResponse message) { words_.Say(std::move(message)); }

void ScriptedFleet::Plan(store::v1::OpenFetchResponse manifest) {
  MutexLock lock(mutex_);
  manifests_.push_back(std::move(manifest));
}

void ScriptedFleet::Clear() {
  words_.Clear();
  MutexLock lock(mutex_);
  manifests_.clear();
}

// It never reads what the proxy reports, as one that hangs would not.
grpc::Status ScriptedFleet::Attach(grpc::ServerContext* context, AttachStream* stream) {
  stream->SendInitialMetadata();
  while (const auto word = words_.Next(*context)) {
    if (!stream->Write(*word)) break;
  }
  return grpc::Status::OK;
}

grpc::Status ScriptedFleet::OpenFetch(grpc::ServerContext*,
                                      const store::v1::OpenFetchRequest* request,
                                      store::v1::OpenFetchResponse* response) {
  {
    MutexLock lock(mutex_);
    if (!manifests_.empty()) {
      *response = std::move(manifests_.front());
      manifests_.pop_front();
      return grpc::Status::OK;
    }
  }
  grpc::ClientContext context;
  rpc::SetDeadlineIn(context, kStoreDeadlineMs);
  grpc::Status opened = store_->OpenFetch(&context, *request, response);
  // Where the store really is: it advertises nothing that can be dialled.
  response->clear_addresses();
  response->add_addresses("grpc://" + store_address_);
  return opened;
}

}  // namespace lorry::proxy::fuzz
