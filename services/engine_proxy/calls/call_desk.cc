#include "services/engine_proxy/calls/call_desk.h"

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "services/engine_proxy/calls/bind_calls.h"
#include "services/engine_proxy/calls/memory_calls.h"
#include "services/engine_proxy/calls/pause_calls.h"

namespace lorry::calls {

namespace {

struct Told {
  std::function<proxy::Event(uint64_t)> event;  // under the number of its ticket
  bool needs_body = false;                      // afterwards
};

std::optional<std::variant<Told, door::Refused>> Read(const door::EngineCall& call) {
  if (auto bind = ReadBindCall(call); bind.has_value()) {
    if (auto* refused = std::get_if<door::Refused>(&*bind)) return std::move(*refused);
    const auto* asked = std::get_if<proxy::BindAsked>(&std::get<BindCall>(*bind));
    const bool needs_body = asked != nullptr && asked->as_tensors;
    return Told{[asks = std::get<BindCall>(*std::move(bind))](uint64_t number) {
                  return EventOf(asks, number);
                },
                needs_body};
  }
  auto read = ReadPauseCall(call);
  const bool is_passed = !read.has_value();
  if (is_passed) read = ReadMemoryCall(call);
  if (!read.has_value()) return std::nullopt;
  if (auto* refused = std::get_if<door::Refused>(&*read)) return std::move(*refused);
  return Told{[made = std::get<proxy::FrameworkCall>(*std::move(read))](uint64_t number) {
                return proxy::Event(proxy::CallMade{number, made});
              },
              is_passed};
}

}  // namespace

void CallDesk::Take(door::EngineCall call, door::CallTicket ticket) {
  if (auto reply = ReplyAtOnce(call); reply.has_value()) {
    ticket.Answer(*std::move(reply));
    return;
  }
  auto read = Read(call);
  if (!read.has_value()) {
    ticket.Answer(door::Refused{403, "ROUTE_REFUSED", call.path + " is answered by nobody here"});
    return;
  }
  if (auto* refused = std::get_if<door::Refused>(&*read)) {
    ticket.Answer(std::move(*refused));
    return;
  }
  const Told& told = std::get<Told>(*read);
  if (!told.needs_body) call.body.clear();
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
    open_.emplace(number, Open{std::move(call), std::move(ticket), std::nullopt});
  }
  const absl::Status posted = machine_.try_post(told.event(number));
  if (posted.ok()) return;
  std::optional<Open> open = Remove(number);
  if (open.has_value())
    open->ticket.Answer(door::Refused{503, "DOOR_FULL", "the proxy has too much to do", 1});
}

void CallDesk::Answer(const proxy::AnswerCall& answer) {
  std::optional<Open> open = Remove(answer.ticket);
  if (!open.has_value()) return;
  if (open->reply.has_value()) return open->ticket.Answer(*std::move(open->reply));
  open->ticket.Answer(AnswerTo(open->call, answer));
}

std::optional<engines::RawCall> CallDesk::TextOf(uint64_t number) {
  MutexLock lock(mutex_);
  const auto it = open_.find(number);
  if (it == open_.end()) return std::nullopt;
  door::EngineCall& call = it->second.call;
  return engines::RawCall{call.method, call.path + call.query, std::exchange(call.body, {})};
}

std::function<void(engines::RawReply)> CallDesk::ReplyTo(uint64_t number) {
  return [this, number](engines::RawReply reply) {
    MutexLock lock(mutex_);
    const auto it = open_.find(number);
    if (it == open_.end()) return;
    it->second.reply =
        door::CallReply{static_cast<int>(reply.status), "application/json", std::move(reply.body)};
  };
}

std::optional<std::string> CallDesk::BodyOf(uint64_t number) {
  std::optional<engines::RawCall> call = TextOf(number);
  if (!call.has_value()) return std::nullopt;
  return std::move(call->body);
}

void CallDesk::Answer(const proxy::AnswerBinding& answer) {
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
