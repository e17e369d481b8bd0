// A bounded queue from many threads to one: the only door into a single-threaded component.
//
// Full means refuse: Post says so at once and its caller answers RESOURCE_EXHAUSTED. Answers to
// work that the owner began itself are never refused, because what it has begun bounds their
// number: they go by PostAnswer.
#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "lib/base/error.h"
#include "lib/base/mutex.h"

namespace lorry::runtime {

template <typename Item>
class Mailbox {
 public:
  explicit Mailbox(size_t capacity) : capacity_(capacity) {}

  // RESOURCE_EXHAUSTED MAILBOX_FULL, or UNAVAILABLE SHUTTING_DOWN once closed; the item is dropped
  // then.
  absl::Status Post(Item item) { return Add(std::move(item), /*refuse_when_full=*/true); }
  // Dropped only once closed.
  void PostAnswer(Item item) { (void)Add(std::move(item), /*refuse_when_full=*/false); }

  // The consumer's: moves at most `max` items to `batch` (cleared first). Waits for the first one,
  // for Close, or for `wait` to pass (none = without limit). False once closed and empty.
  bool Drain(std::vector<Item>& batch, size_t max, std::optional<std::chrono::milliseconds> wait);

  // Nothing enters any more; what is inside can still be drained.
  void Close();
  size_t size() const;

 private:
  absl::Status Add(Item item, bool refuse_when_full);

  const size_t capacity_;
  mutable Mutex mutex_;
  CondVar filled_;
  std::deque<Item> items_ LORRY_GUARDED_BY(mutex_);
  bool closed_ LORRY_GUARDED_BY(mutex_) = false;
};

template <typename Item>
absl::Status Mailbox<Item>::Add(Item item, bool refuse_when_full) {
  {
    MutexLock lock(mutex_);
    if (closed_) return Error(absl::StatusCode::kUnavailable, "SHUTTING_DOWN", "shutting down");
    if (refuse_when_full && items_.size() >= capacity_) {
      return Error(absl::StatusCode::kResourceExhausted, "MAILBOX_FULL",
                   "too much work is waiting; try again in a moment");
    }
    items_.push_back(std::move(item));
  }
  filled_.notify_one();
  return absl::OkStatus();
}

template <typename Item>
bool Mailbox<Item>::Drain(std::vector<Item>& batch, size_t max,
                          std::optional<std::chrono::milliseconds> wait) {
  batch.clear();
  MutexLock lock(mutex_);
  const auto until = std::chrono::steady_clock::now() + wait.value_or(std::chrono::milliseconds(0));
  while (items_.empty() && !closed_) {
    if (!wait.has_value()) {
      filled_.wait(mutex_);
    } else if (filled_.wait_until(mutex_, until) == std::cv_status::timeout) {
      break;
    }
  }
  while (!items_.empty() && batch.size() < max) {
    batch.push_back(std::move(items_.front()));
    items_.pop_front();
  }
  return !(closed_ && items_.empty() && batch.empty());
}

template <typename Item>
void Mailbox<Item>::Close() {
  {
    MutexLock lock(mutex_);
    closed_ = true;
  }
  filled_.notify_all();
}

template <typename Item>
size_t Mailbox<Item>::size() const {
  MutexLock lock(mutex_);
  return items_.size();
}

}  // namespace lorry::runtime
