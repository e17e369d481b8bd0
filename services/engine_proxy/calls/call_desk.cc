#include "services/engine_proxy/calls/call_desk.h"

#include <string>
#include <utility>

#include "services/engine_proxy/calls/pause_calls.h"

namespace lorry::calls {

void CallDesk::Take(door::EngineCall call, door::CallTicket ticket) {
  auto read = ReadPauseCall(call);
  if (!read.has_value()) {
    ticket.Answer(door::Refused{403, "ROUTE_REFUSED", call.path + " is answered by nobody here"});
    return;
  }
  if (auto* refused = std::get_if<door::Refused>(&*read)) {
    ticket.Answer(std::move(*refused));
    return;
  }
  call.body.clear();
  uint64_t number = 0;
  {
    MutexLock lock(mutex_);
    number = ++last_;
  }
  // Before it is among the open ones, whose tickets are the answering thread's.
  ticket.OnLeft([this, number] {
    Remove(number);
    machine_.post(proxy::CallLeft{number});
  });
  {
    MutexLock lock(mutex_);
    open_.emplace(number, Open{std::move(call), std::move(ticket)});
  }
  const absl::Status posted =
      machine_.try_post(proxy::CallMade{number, std::get<proxy::FrameworkCall>(*std::move(read))});
  if (posted.ok()) return;
  std::optional<Open> open = Remove(number);
  if (open.has_value())
    open->ticket.Answer(door::Refused{503, "DOOR_FULL", "the proxy has too much to do", 1});
}

void CallDesk::Answer(const proxy::AnswerCall& answer) {
  std::optional<Open> open = Remove(answer.ticket);
  if (open.has_value()) open->ticket.Answer(AnswerTo(open->call, answer));
}

std::optional<CallDesk::Open> CallDesk::Remove(uint64_t number) {
  MutexLock lock(mutex_);
  auto node = open_.extract(number);
  if (node.empty()) return std::nullopt;
  return std::move(node.mapped());
}

}  // namespace lorry::calls
