// Session: a call of a framework's that somebody else answers.
#include <openssl/crypto.h>

#include <chrono>
#include <utility>

#include "services/engine_proxy/door/admit.h"
#include "services/engine_proxy/door/answer.h"
#include "services/engine_proxy/door/session.h"

namespace lorry::door {
namespace {

// One place among the calls that wait, while it lives; and the wait's end for whoever would wake it.
class CallPlace {
 public:
  CallPlace(Shard& shard, Timer& timer, std::shared_ptr<CallSlot> slot)
      : shard_(shard), timer_(timer), slot_(std::move(slot)) {
    has_room_ = shard.shared.calls.fetch_add(1) < shard.shared.options.limits.calls;
    shard.held.insert(&timer);
  }
  ~CallPlace() {
    slot_->Leave();
    shard_.held.erase(&timer_);
    shard_.shared.calls.fetch_sub(1);
  }
  CallPlace(const CallPlace&) = delete;
  CallPlace& operator=(const CallPlace&) = delete;
  bool has_room() const { return has_room_; }

 private:
  Shard& shard_;
  Timer& timer_;
  const std::shared_ptr<CallSlot> slot_;
  bool has_room_ = false;
};

// Takes the same time wherever the two differ.
bool IsSame(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

// The proxy calls the engine with its own key: whoever lets it must know the key, too.
std::optional<Refused> WhyNotCalled(const Exchange& x) {
  const std::string& key = x.facts->control_authorization;
  if (!key.empty() && !IsSame(x.head.Get("authorization"), key))
    return Refused{401, "UNAUTHENTICATED", "this call needs the engine's own key"};
  if (x.head.GetAll("content-encoding").empty()) return std::nullopt;
  return Refused{415, "REQUEST_INVALID", "compressed bodies cannot be read here; send plain JSON"};
}

}  // namespace

Task<bool> Session::ServeCall(Exchange& x) {
  const DoorOptions& options = shard_.shared.options;
  if (auto why = WhyNotCalled(x)) co_return co_await Refuse(x, *std::move(why));
  client_.Watch();
  Timer timer(shard_.io.get_executor());
  auto slot = std::make_shared<CallSlot>([shard = &shard_, at = &timer] {
    asio::post(shard->io, [shard, at] {
      if (shard->held.contains(at)) at->cancel();
    });
  });
  const CallPlace place(shard_, timer, slot);
  if (!place.has_room()) {
    Refused why{503, "DOOR_FULL", "too many calls of this kind wait for their answers", 1};
    co_return co_await Refuse(x, std::move(why));
  }
  const LeaveHook hook(client_, [&timer] { timer.cancel(); });
  EngineCall call{.engine = x.kind,
                  .method = std::string(x.head.method),
                  .path = std::string(x.head.path),
                  .query = std::string(x.head.query),
                  .body = std::string(x.body),
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
