// A framework's call of the engine as a whole, or of its adapters: the door hands it to its owner,
// who answers later, from any thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "lib/base/mutex.h"
#include "lib/fleet/engine_name.h"
#include "services/engine_proxy/door/router.h"

namespace lorry::door {

// As it came; its body is within the door's limit, and otherwise unread.
struct EngineCall {
  fleet::EngineKind engine = fleet::EngineKind::kUnknown;
  std::string method = "POST";
  std::string path;
  std::string query;  // with its '?', empty when there is none
  std::string body;
  std::string request_id;
};

struct CallReply {
  int status = 200;
  std::string content_type;
  std::string body;
};
// In words of the engine's, or a refusal, which the door puts into the engine's shape.
using CallAnswer = std::variant<CallReply, Refused>;

// Where one answer is waited for. Thread-safe; shared by the call's ticket and by the door.
class CallSlot {
 public:
  // `wake` comes from whoever answers, once, and not after Leave.
  explicit CallSlot(std::function<void()> wake) : wake_(std::move(wake)) {}
  void Put(CallAnswer answer) LORRY_EXCLUDES(mutex_);
  void OnLeft(std::function<void()> on_left) LORRY_EXCLUDES(mutex_);
  std::optional<CallAnswer> Take() LORRY_EXCLUDES(mutex_);
  bool HasAnswer() LORRY_EXCLUDES(mutex_);
  void Leave() LORRY_EXCLUDES(mutex_);

 private:
  Mutex mutex_;
  bool is_answered_ LORRY_GUARDED_BY(mutex_) = false;
  bool has_left_ LORRY_GUARDED_BY(mutex_) = false;
  std::optional<CallAnswer> answer_ LORRY_GUARDED_BY(mutex_);
  std::function<void()> wake_ LORRY_GUARDED_BY(mutex_);
  std::function<void()> on_left_ LORRY_GUARDED_BY(mutex_);
};

// The right and the duty to answer one call. Move-only; one that goes without an answer refuses the
// call, as its owner is being stopped.
class CallTicket {
 public:
  explicit CallTicket(std::shared_ptr<CallSlot> slot) : slot_(std::move(slot)) {}
  CallTicket(CallTicket&&) noexcept = default;
  CallTicket& operator=(CallTicket&&) = delete;
  ~CallTicket();

  // The first answer counts; none reaches a client that has left.
  void Answer(CallAnswer answer);
  // `on_left` comes once, from any thread, at once where it was so before: nobody waits for the
  // answer any more. Not after an answer.
  void OnLeft(std::function<void()> on_left) { slot_->OnLeft(std::move(on_left)); }

 private:
  std::shared_ptr<CallSlot> slot_;
};

using CallOwner = std::function<void(EngineCall, CallTicket)>;

}  // namespace lorry::door
