#include "tests/fuzz/orchestrator/scripted_store.h"

#include <utility>

namespace lorry::sync::fuzz {

ScriptedStore::ScriptedStore() : server_({this}) {}

ScriptedStore::~ScriptedStore() { words_.Stop(); }

void ScriptedStore::Say(store::v1::WatchResponse message) { words_.Say(std::move(message)); }

void ScriptedStore::End(grpc::Status why) { words_.Say(std::move(why)); }

void ScriptedStore::OpenLate() {
  MutexLock lock(mutex_);
  opens_late_ = true;
}

void ScriptedStore::Take(bool taken) {
  RefuseHolds(taken ? grpc::Status::OK : grpc::Status(grpc::StatusCode::UNAVAILABLE, "not now"));
}

void ScriptedStore::RefuseHolds(grpc::Status why) {
  MutexLock lock(mutex_);
  of_holds_ = std::move(why);
}

void ScriptedStore::AnswerLooks(Look look) {
  MutexLock lock(mutex_);
  look_ = std::move(look);
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
  {
    MutexLock lock(mutex_);
    if (!opens_late_) writer->SendInitialMetadata();
    watches_.push_back(*request);
  }
  while (const auto word = words_.Next(*context)) {
    if (const auto* end = std::get_if<grpc::Status>(&*word)) return *end;
    if (!writer->Write(std::get<store::v1::WatchResponse>(*word))) break;
  }
  return grpc::Status::OK;
}

grpc::Status ScriptedStore::SetHolds(grpc::ServerContext*,
                                     const store::v1::SetHoldsRequest* request,
                                     store::v1::SetHoldsResponse*) {
  MutexLock lock(mutex_);
  holds_.push_back(*request);
  return of_holds_;
}

grpc::Status ScriptedStore::GetRevision(grpc::ServerContext*, const store::v1::GetRevisionRequest*,
                                        store::v1::GetRevisionResponse* response) {
  Look look;
  {
    MutexLock lock(mutex_);
    look = look_;
  }
  const auto answer = look ? look() : std::nullopt;
  if (!answer.has_value()) return {grpc::StatusCode::UNAVAILABLE, "not now"};
  *response = *answer;
  return grpc::Status::OK;
}

}  // namespace lorry::sync::fuzz
