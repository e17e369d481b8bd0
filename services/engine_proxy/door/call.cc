#include "services/engine_proxy/door/call.h"

#include <utility>

namespace lorry::door {

void CallSlot::Put(CallAnswer answer) {
  MutexLock lock(mutex_);
  if (std::exchange(is_answered_, true) || has_left_) return;
  answer_ = std::move(answer);
  on_left_ = nullptr;
  // Under the lock, so that nothing is woken that Leave has let go.
  wake_();
}

void CallSlot::OnLeft(std::function<void()> on_left) {
  {
    MutexLock lock(mutex_);
    if (is_answered_) return;
    if (!has_left_) {
      on_left_ = std::move(on_left);
      return;
    }
  }
  on_left();
}

std::optional<CallAnswer> CallSlot::Take() {
  MutexLock lock(mutex_);
  return std::exchange(answer_, std::nullopt);
}

bool CallSlot::HasAnswer() {
  MutexLock lock(mutex_);
  return answer_.has_value();
}

void CallSlot::Leave() {
  std::function<void()> on_left;
  {
    MutexLock lock(mutex_);
    has_left_ = true;
    wake_ = nullptr;
    on_left = std::exchange(on_left_, nullptr);
  }
  if (on_left) on_left();
}

CallTicket::~CallTicket() {
  if (slot_ == nullptr) return;
  slot_->Put(Refused{503, "DRAINING", "this engine's proxy is being stopped", 1});
}

void CallTicket::Answer(CallAnswer answer) { slot_->Put(std::move(answer)); }

}  // namespace lorry::door
