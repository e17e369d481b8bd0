#include "tests/fuzz/orchestrator/scripted_store.h"

#include <chrono>

#include "lib/base/check.h"

namespace lorry::sync::fuzz {
namespace {

// How soon a watch whose follower has left is noticed.
constexpr std::chrono::milliseconds kLook(20);

}  // namespace

ScriptedStore::ScriptedStore() {
  auto access = rpc::Access::Open("", /*certificates=*/false);
  LORRY_CHECK(access.ok());
  access_ = *std::move(access);
  gate_.emplace(*access_);
  auto server = rpc::Server::Start({}, *gate_, {this});
  LORRY_CHECK(server.ok());
  server_ = *std::move(server);
}

ScriptedStore::~ScriptedStore() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  LORRY_CHECK(server_->Shutdown().ok());
}

void ScriptedStore::Say(store::v1::WatchResponse message) {
  {
    MutexLock lock(mutex_);
    messages_.push_back(std::move(message));
  }
  changed_.notify_all();
}

grpc::Status ScriptedStore::Watch(grpc::ServerContext* context, const store::v1::WatchRequest*,
                                  grpc::ServerWriter<store::v1::WatchResponse>* writer) {
  for (;;) {
    store::v1::WatchResponse message;
    {
      MutexLock lock(mutex_);
      while (messages_.empty() && !stopping_ && !context->IsCancelled()) {
        changed_.wait_for(mutex_, kLook);
      }
      if (stopping_ || context->IsCancelled()) return grpc::Status::OK;
      message = std::move(messages_.front());
      messages_.pop_front();
    }
    if (!writer->Write(message)) return grpc::Status::OK;
  }
}

}  // namespace lorry::sync::fuzz
