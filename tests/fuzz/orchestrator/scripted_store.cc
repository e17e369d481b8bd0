#include "tests/fuzz/orchestrator/scripted_store.h"

#include <chrono>
#include <utility>

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
    words_.emplace_back(std::move(message));
  }
  changed_.notify_all();
}

void ScriptedStore::End(grpc::Status why) {
  {
    MutexLock lock(mutex_);
    words_.emplace_back(std::move(why));
  }
  changed_.notify_all();
}

void ScriptedStore::Take(bool taken) {
  MutexLock lock(mutex_);
  taken_ = taken;
}

std::vector<store::v1::WatchRequest> ScriptedStore::watches() {
  MutexLock lock(mutex_);
  return watches_;
}

std::vector<store::v1::SetHoldsRequest> ScriptedStore::holds() {
  MutexLock lock(mutex_);
  return holds_;
}

grpc::Status ScriptedStore::Watch(grpc::ServerContext* context,
                                  const store::v1::WatchRequest* request,
                                  grpc::ServerWriter<store::v1::WatchResponse>* writer) {
  writer->SendInitialMetadata();
  {
    MutexLock lock(mutex_);
    watches_.push_back(*request);
  }
  for (;;) {
    Word word;
    {
      MutexLock lock(mutex_);
      while (words_.empty() && !stopping_ && !context->IsCancelled()) {
        changed_.wait_for(mutex_, kLook);
      }
      if (stopping_ || context->IsCancelled()) return grpc::Status::OK;
      word = std::move(words_.front());
      words_.pop_front();
    }
    if (const auto* end = std::get_if<grpc::Status>(&word)) return *end;
    if (!writer->Write(std::get<store::v1::WatchResponse>(word))) return grpc::Status::OK;
  }
}

grpc::Status ScriptedStore::SetHolds(grpc::ServerContext*,
                                     const store::v1::SetHoldsRequest* request,
                                     store::v1::SetHoldsResponse*) {
  MutexLock lock(mutex_);
  holds_.push_back(*request);
  return taken_ ? grpc::Status::OK : grpc::Status(grpc::StatusCode::UNAVAILABLE, "not now");
}

}  // namespace lorry::sync::fuzz
