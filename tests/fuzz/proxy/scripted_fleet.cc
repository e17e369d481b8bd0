#include "tests/fuzz/proxy/scripted_fleet.h"

#include <chrono>
#include <utility>

#include "lib/base/check.h"
#include "lib/rpc/channel.h"

namespace lorry::proxy::fuzz {
namespace {

// How soon a session that has ended is noticed.
constexpr std::chrono::milliseconds kLook(20);
constexpr int64_t kStoreDeadlineMs = 10'000;

std::shared_ptr<grpc::Channel> Dial(const std::string& target) {
  auto channel = rpc::MakeChannel({.target = target});
  LORRY_CHECK(channel.ok());
  return *std::move(channel);
}

}  // namespace

ScriptedFleet::ScriptedFleet(const std::string& store)
    : store_address_(store), store_(store::v1::StoreService::NewStub(Dial(store))) {
  auto access = rpc::Access::Open("", /*certificates=*/false);
  LORRY_CHECK(access.ok());
  access_ = *std::move(access);
  gate_.emplace(*access_);
  auto server = rpc::Server::Start({}, *gate_,
                                   {static_cast<sync::v1::SyncService::Service*>(this),
                                    static_cast<store::v1::StoreService::Service*>(this)});
  LORRY_CHECK(server.ok());
  server_ = *std::move(server);
}

ScriptedFleet::~ScriptedFleet() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  LORRY_CHECK(server_->Shutdown().ok());
}

void ScriptedFleet::Say(sync::v1::AttachResponse message) {
  {
    MutexLock lock(mutex_);
    words_.push_back(std::move(message));
  }
  changed_.notify_all();
}

void ScriptedFleet::Plan(store::v1::OpenFetchResponse manifest) {
  MutexLock lock(mutex_);
  manifests_.push_back(std::move(manifest));
}

bool ScriptedFleet::is_heard() {
  MutexLock lock(mutex_);
  return words_.empty();
}

void ScriptedFleet::Clear() {
  MutexLock lock(mutex_);
  words_.clear();
  manifests_.clear();
}

// It never reads what the proxy reports, as one that hangs would not.
grpc::Status ScriptedFleet::Attach(grpc::ServerContext* context, AttachStream* stream) {
  stream->SendInitialMetadata();
  for (;;) {
    sync::v1::AttachResponse word;
    {
      MutexLock lock(mutex_);
      while (words_.empty() && !stopping_ && !context->IsCancelled()) {
        changed_.wait_for(mutex_, kLook);
      }
      if (stopping_ || context->IsCancelled()) return grpc::Status::OK;
      word = std::move(words_.front());
      words_.pop_front();
    }
    if (!stream->Write(word)) return grpc::Status::OK;
  }
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
