// Session: a call of a framework's that somebody else answers.
#include <chrono>
#include <utility>

#include "services/engine_proxy/door/admit.h"
#include "services/engine_proxy/door/answer.h"
#include "services/engine_proxy/door/session.h"

namespace lorry::door {
namespace {

// One place among the calls that wait, while it lives.
class CallPlace {
 public:
  explicit CallPlace(Shared& shared)
      : shared_(shared), has_room_(shared.calls.fetch_add(1) < shared.options.limits.calls) {}
  ~CallPlace() { shared_.calls.fetch_sub(1); }
  CallPlace(const CallPlace&) = delete;
  CallPlace& operator=(const CallPlace&) = delete;
  bool has_room() const { return has_room_; }

 private:
  Shared& shared_;
  const bool has_room_;
};

Refused TooManyCalls() {
  return {503, "DOOR_FULL", "too many calls of this kind wait for their answers", 1};
}

// While it lives, `timer` is cancelled by whoever would wake the call; then nobody waits for `slot`.
class CallWait {
 public:
  CallWait(Shard& shard, Timer& timer, std::shared_ptr<CallSlot> slot)
      : shard_(shard), timer_(timer), slot_(std::move(slot)) {
    shard.held.insert(&timer);
  }
  ~CallWait() {
    slot_->Leave();
    shard_.held.erase(&timer_);
  }
  CallWait(const CallWait&) = delete;
  CallWait& operator=(const CallWait&) = delete;

 private:
  Shard& shard_;
  Timer& timer_;
  const std::shared_ptr<CallSlot> slot_;
};

std::optional<Refused> WhyNotCalled(const Exchange& x) {
  if (auto why = LacksKey(x)) return why;
  if (x.head.GetAll("content-encoding").empty()) return std::nullopt;
  return Refused{415, "REQUEST_INVALID", "compressed bodies cannot be read here; send plain JSON"};
}

}  // namespace

Task<bool> Session::ServeCall(Exchange& x) {
  if (auto why = WhyNotCalled(x)) co_return co_await Refuse(x, *std::move(why));
  const CallPlace place(shard_.shared);
  if (!place.has_room()) {
    Refused why = TooManyCalls();
    co_return co_await Refuse(x, std::move(why));
  }
  co_return co_await HandOver(x, std::string(x.body));
}

// A call whose body is still to come, and may have more than all other bodies together: nothing is
// kept for it before its head says that it is taken, and it counts among the calls from then on.
Task<bool> Session::ServeTensors(Exchange& x) {
  std::optional<Refused> why;
  if (!Choose(x)) {
    why = NoEngine();
  } else {
    why = x.route.action == RouteAction::kCall ? WhyNotCalled(x) : NotRouted(x);
  }
  if (!why) {
    const CallPlace place(shard_.shared);
    std::string body;
    why = TooManyCalls();
    if (place.has_room()) why = co_await reader_.ReadTensors(x.head, &body, &x.lease);
    if (!why) co_return co_await HandOver(x, std::move(body));
  }
  co_return why->status != 0 && co_await Reject(x, *std::move(why));
}

Task<bool> Session::HandOver(Exchange& x, std::string body) {
  const DoorOptions& options = shard_.shared.options;
  client_.Watch();
  Timer timer(shard_.io.get_executor());
  auto slot = std::make_shared<CallSlot>([shard = &shard_, at = &timer] {
    asio::post(shard->io, [shard, at] {
      if (shard->held.contains(at)) at->cancel();
    });
  });
  const CallWait wait(shard_, timer, slot);
  const LeaveHook hook(client_, [&timer] { timer.cancel(); });
  EngineCall call{.engine = x.kind,
                  .method = std::string(x.head.method),
                  .path = std::string(x.head.path),
                  .query = std::string(x.head.query),
                  .body = std::move(body),
                  .request_id = x.record.request_id};
  options.on_call(std::move(call), CallTicket(slot));
  const int64_t until_ms = NowMs() + options.limits.call_ms;
  // Whoever answers, or lets the door drain, posts to this thread afterwards, so that its wake-up
  // cannot come between what was read here and this wait.
  while (!slot->HasAnswer() && !client_.left() && !shard_.shared.draining) {
    const int64_t left_ms = until_ms - NowMs();
    if (left_ms <= 0) break;
    timer.expires_after(std::chrono::milliseconds(left_ms));
    auto [ignored] = co_await timer.async_wait(kAwait);
    (void)ignored;
  }
  if (client_.left()) co_return false;
  std::optional<CallAnswer> answer = slot->Take();
  if (!answer.has_value() && shard_.shared.draining) answer = Draining();
  if (!answer.has_value()) {
    answer = Refused{504, "CALL_TIMEOUT",
                     "the call was not answered within --door-call-ms; it may yet take effect"};
  }
  if (auto* refused = std::get_if<Refused>(&*answer)) {
    Refused why = std::move(*refused);
    co_return co_await Refuse(x, std::move(why));
  }
  CallReply& reply = std::get<CallReply>(*answer);
  co_return co_await Answer(x, reply.status, reply.content_type, std::move(reply.body));
}

}  // namespace lorry::door
