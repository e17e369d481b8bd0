// Whoever was told by the store that something is so finds it so here.
//
// The store's watch tells of a change a moment after whoever made it was answered. What is unknown
// here may be just that. Before anybody is told so the store is asked for its revision, and the
// watch is waited for until it has come there. One look at the store is for all who came before it
// began: whoever comes while it is under way may have been answered since, and waits for the next.
//
// Any thread may ask. It has a thread, on which looks block; owned by StoreLink.
#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "lib/base/clock.h"
#include "lib/rpc/fresh_channel.h"
#include "lib/runtime/loop.h"
#include "lorry/store/v1/store.grpc.pb.h"

namespace lorry::sync {

class CatchUp {
 public:
  // A watch is milliseconds behind; one that is further behind than this may be so for long.
  static constexpr int64_t kWaitMaxMs = 1'000;
  // Half of the calls that a gate lets work at once: a slow store leaves the others their turn.
  static constexpr int kWaitersMax = 32;

  using Mark = store::v1::GetRevisionResponse;
  using Done = std::function<void(const absl::Status&)>;

  // `has`: whether the watch has come to a mark. Both outlive this.
  CatchUp(rpc::FreshChannel& store, std::function<bool(const Mark&)> has);
  ~CatchUp();
  // Whoever waits is answered, and whoever asks afterwards.
  void Stop();

  // Calls `done` once, on the caller's thread or on its own: OK when the watch has brought
  // everything that the store had when this was called; within kWaitMaxMs otherwise, with words on
  // why that is not known. It must only enqueue.
  void Ask(Done done);
  // The watch has brought something.
  void OnHeard();

 private:
  struct Waiter {
    Tick until = 0;
    std::optional<Mark> mark;  // none: the next look is for it
    Done done;
  };
  // All on the loop.
  void Join(Waiter waiter);
  void Advance();
  void LookFor(Tick until);
  void Settle();
  void EndIf(const std::function<std::optional<absl::Status>(const Waiter&)>& end);

  rpc::FreshChannel& store_;
  const std::function<bool(const Mark&)> has_;
  const SteadyClock clock_;
  std::atomic<int> waiting_ = 0;
  std::vector<Waiter> waiters_;  // the loop's
  runtime::Loop loop_{"catch-up"};
};

// `status` says that something is unknown; `why`, that it might only not be known yet.
absl::Status InDoubt(const absl::Status& status, const absl::Status& why);
std::string InDoubt(const std::string& text, const absl::Status& why);

}  // namespace lorry::sync
