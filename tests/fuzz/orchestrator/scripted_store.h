// A store as the orchestrator sees it: what its watch says comes from the input, or from a test.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "lib/base/mutex.h"
#include "lorry/store/v1/store.grpc.pb.h"
#include "tests/fuzz/rpc/scripted_service.h"

namespace lorry::sync::fuzz {

class ScriptedStore final : private store::v1::StoreService::Service {
 public:
  ScriptedStore();
  ~ScriptedStore() override;
  std::string address() const { return server_.address(); }
  // The next message of the watch, whoever follows it by then.
  void Say(store::v1::WatchResponse message);
  // Ends the watch, after what was said before.
  void End(grpc::Status why);
  // From now on a watch is open for its caller with its first word, not at once.
  void OpenLate();
  // Whether holds are taken; at first they are.
  void Take(bool taken);
  void RefuseHolds(grpc::Status why);
  // What each call that asks how far it has come is answered; at first it is not.
  using Look = std::function<std::optional<store::v1::GetRevisionResponse>()>;
  void AnswerLooks(Look look);

  // The watches so far, each with what it asked for; all that were opened.
  std::vector<store::v1::WatchRequest> watches();
  std::vector<store::v1::SetHoldsRequest> holds();  // taken or not

 private:
  using Word = std::variant<store::v1::WatchResponse, grpc::Status>;
  grpc::Status Watch(grpc::ServerContext* context, const store::v1::WatchRequest*,
                     grpc::ServerWriter<store::v1::WatchResponse>* writer) override;
  grpc::Status SetHolds(grpc::ServerContext* context, const store::v1::SetHoldsRequest* request,
                        store::v1::SetHoldsResponse* response) override;
  grpc::Status GetRevision(grpc::ServerContext* context, const store::v1::GetRevisionRequest*,
                           store::v1::GetRevisionResponse* response) override;

  lorry::fuzz::ScriptedWords<Word> words_;
  Mutex mutex_;
  grpc::Status of_holds_ LORRY_GUARDED_BY(mutex_);  // what each set is answered
  bool opens_late_ LORRY_GUARDED_BY(mutex_) = false;
  Look look_ LORRY_GUARDED_BY(mutex_);
  std::vector<store::v1::WatchRequest> watches_ LORRY_GUARDED_BY(mutex_);
  std::vector<store::v1::SetHoldsRequest> holds_ LORRY_GUARDED_BY(mutex_);
  lorry::fuzz::OpenServer server_;  // goes first
};

}  // namespace lorry::sync::fuzz
