// A bounded queue from many threads to one: the only door into a single-threaded component.
//
// Full means refuse: Post says so at once and its caller answers RESOURCE_EXHAUSTED. Answers to
// work that the owner began itself are never refused, because what it has begun bounds their
// number: they go by PostAnswer. Reports of which only the newest matters go by PostLatest: one of
// each key waits at most, however far behind the owner is, and takes no other's room.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
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
  // Takes the place of the item of this key that still waits; otherwise as PostAnswer.
  void PostLatest(uint64_t key, Item item);
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
  struct Waiting {
    Item item;
    std::optional<uint64_t> key;  // of PostLatest
  };
  std::deque<Waiting> items_ LORRY_GUARDED_BY(mutex_);
  std::map<uint64_t, Waiting*> latest_ LORRY_GUARDED_BY(mutex_);  // by key, those that wait
  bool closed_ LORRY_GUARDED_BY(mutex_) = false;
};

template <typename Item>
absl::Status Mailbox<Item>::Add(Item item, bool refuse_when_full) {
  {
    MutexLock lock(mutex_);
    if (closed_) return Error(absl::StatusCode::kUnavailable, "SHUTTING_DOWN", "shutting down");
    if (refuse_when_full && items_.size() - latest_.size() >= capacity_) {
      return Error(absl::StatusCode::kResourceExhausted, "MAILBOX_FULL",
                   "too much work is waiting; try again in a moment");
    }
    items_.push_back({std::move(item), std::nullopt});
  }
  filled_.notify_one();
  return absl::OkStatus();
}

template <typename Item>
void Mailbox<Item>::PostLatest(uint64_t key, Item item) {
  {
    MutexLock lock(mutex_);
    if (closed_) return;
    const auto [waiting, is_new] = latest_.try_emplace(key, nullptr);
    if (!is_new) {
      waiting->second->item = std::move(item);
      return;
    }
    items_.push_back({std::move(item), key});
    waiting->second = &items_.back();  // a deque moves nothing while it is used at its ends
  }
  filled_.notify_one();
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
    Waiting& first = items_.front();
    if (first.key.has_value()) latest_.erase(*first.key);
    batch.push_back(std::move(first.item));
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
