#include "services/engine_proxy/door/admit.h"

#include <chrono>
#include <map>
#include <utility>

namespace lorry::door {
namespace {

// Another engine behind the same balancer answers at once.
constexpr int kRetryElsewhereS = 1;

// One place among the requests that wait, while it lives.
class HeldPlace {
 public:
  HeldPlace(Shard& shard, Timer& timer) : shard_(shard), timer_(timer) {
    has_room_ = shard.shared.held.fetch_add(1) < shard.shared.options.limits.held_requests;
    shard.held.insert(&timer);
  }
  ~HeldPlace() {
    shard_.held.erase(&timer_);
    shard_.shared.held.fetch_sub(1);
  }
  HeldPlace(const HeldPlace&) = delete;
  HeldPlace& operator=(const HeldPlace&) = delete;
  bool has_room() const { return has_room_; }

 private:
  Shard& shard_;
  Timer& timer_;
  bool has_room_ = false;
};

// While it lives, `timer` is cancelled when the client aborts the request.
class AbortHook {
 public:
  AbortHook(Shard& shard, Timer& timer, std::shared_ptr<LiveRequest> live)
      : shard_(shard), live_(std::move(live)) {
    if (!live_) return;
    live_->OnClientAborted([shard = &shard, at = &timer] {
      asio::post(shard->io, [shard, at] {
        if (shard->held.contains(at)) at->cancel();
      });
    });
  }
  ~AbortHook() {
    if (live_) live_->OnClientAborted(nullptr);
  }
  AbortHook(const AbortHook&) = delete;
  AbortHook& operator=(const AbortHook&) = delete;
  bool aborted() const {
    return shard_.shared.aborts_of_all != aborts_of_all_ || (live_ && live_->client_aborted());
  }

 private:
  Shard& shard_;
  const std::shared_ptr<LiveRequest> live_;
  const uint64_t aborts_of_all_ = shard_.shared.aborts_of_all;
};

}  // namespace

Refused Draining() {
  return {
      503, "DRAINING",
      "this engine's proxy is being stopped and lets no request wait; another engine may serve it",
      kRetryElsewhereS};
}

Task<std::optional<Resolution>> WaitWhileHeld(Shard& shard, Client& client,
                                              std::shared_ptr<LiveRequest> live, const Ask& ask,
                                              Held held, int64_t* held_ms) {
  Timer timer(shard.io.get_executor());
  const HeldPlace place(shard, timer);
  if (!place.has_room()) {
    co_return Resolution(
        Refused{429, "DOOR_FULL",
                "too many requests wait for a sync to end, or an adapter to be loaded", 1});
  }
  const LeaveHook hook(client, [&timer] { timer.cancel(); });
  const AbortHook abort(shard, timer, std::move(live));
  const auto unwanted = [&] { return client.left() || abort.aborted(); };
  const int64_t began_ms = NowMs();
  // Of each kind of wait. Who has waited under a framework's pause has not waited for an adapter yet,
  // and however often these follow each other, each has its limit.
  std::map<Held::Kind, int64_t> waited_ms;
  Resolution outcome = std::move(held);
  Demand demand;
  while (Held* still = std::get_if<Held>(&outcome)) {
    if (unwanted()) break;
    if (shard.shared.draining) {
      outcome = Draining();
      break;
    }
    int64_t& waited = waited_ms[still->kind];
    const int64_t left_ms = still->limit_ms - waited;
    if (left_ms <= 0) {
      Refused too_late = std::move(still->too_late);
      outcome = std::move(too_late);
      break;
    }
    if (still->demands != demand.adapters()) {
      demand = still->demands.empty() ? Demand() : shard.shared.router.Wait(still->demands);
    }
    // Whoever sets a table, or lets the door drain, posts to this thread afterwards, so that its
    // wake-up cannot come between what was read here and this wait.
    const int64_t since_ms = NowMs();
    timer.expires_after(std::chrono::milliseconds(left_ms));
    auto [ignored] = co_await timer.async_wait(kAwait);
    (void)ignored;
    waited += NowMs() - since_ms;
    // A row may open because the door drains; whoever waited is refused all the same.
    if (!unwanted() && !shard.shared.draining) outcome = shard.shared.router.Resolve(ask);
  }
  *held_ms = NowMs() - began_ms;
  DoorObserver* const observer = shard.shared.options.observer;
  const auto loading = waited_ms.find(Held::Kind::kLoad);
  if (loading != waited_ms.end() && observer != nullptr)
    observer->OnDemandWaited(static_cast<double>(loading->second) / 1e3);
  if (std::holds_alternative<Held>(outcome) || client.left()) co_return std::nullopt;
  co_return outcome;
}

}  // namespace lorry::door
