// What waits to be written to one stream. Not thread-safe: the stream that owns it locks.
//
// Two kinds. LatestWins (Attach: Desired, Observed) holds one message and replaces it, so that a
// slow peer costs one document. Fifo (Watch) keeps every message up to a limit; a peer that falls
// further behind is told to list and watch again.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <utility>

namespace lorry::rpc {

// 0 = latest wins.
inline constexpr size_t kLatestWins = 0;

template <typename Message>
class Outbox {
 public:
  explicit Outbox(size_t fifo_max = kLatestWins) : fifo_max_(fifo_max) {}

  // False: the queue is full and nothing was changed.
  [[nodiscard]] bool Put(Message message) {
    if (fifo_max_ == kLatestWins) {
      waiting_.clear();
    } else if (waiting_.size() >= fifo_max_) {
      return false;
    }
    waiting_.push_back(std::move(message));
    return true;
  }
  std::optional<Message> Take() {
    if (waiting_.empty()) return std::nullopt;
    std::optional<Message> next(std::move(waiting_.front()));
    waiting_.pop_front();
    return next;
  }
  void Clear() { waiting_.clear(); }
  bool empty() const { return waiting_.empty(); }

 private:
  const size_t fifo_max_;
  std::deque<Message> waiting_;
};

}  // namespace lorry::rpc
