#include "services/engine_proxy/machine/framework_calls.h"

#include <algorithm>
#include <utility>

#include "lib/base/overload.h"
#include "services/engine_proxy/machine/memory.h"
#include "services/engine_proxy/machine/pauses.h"

namespace lorry::proxy {
namespace {

using fleet::PauseKind;

// Frozen requests never end, and SGLang waits for their end with its registry of pauses locked: it
// could not be continued either.
bool WouldNeverEnd(const Core& core, const PauseCall& call) {
  return call.kind == PauseKind::kAbort && core.limits.kind == fleet::EngineKind::kSglang &&
         core.pause.wanted.kind != PauseKind::kAbort;
}

// Whether the call is over, or the engine is being asked for it; otherwise it waits.
bool Take(Core& core, uint64_t ticket, const PauseCall& call) {
  if (core.boot.empty() || !core.answers) {
    AnswerNow(core, ticket, Outcome::kUnsent, "ENGINE_UNREACHABLE", "the engine does not answer");
    return true;
  }
  if (core.IsWedged()) {
    AnswerNow(
        core, ticket, Outcome::kRefused, "ENGINE_WEDGED",
        "the engine hangs in its registry of adapters and may not go on from a pause; it needs "
        "a restart");
    return true;
  }
  if (IsHeldByFramework(core)) {
    if (WouldNeverEnd(core, call)) {
      AnswerNow(core, ticket, Outcome::kRefused, "PAUSE_CONFLICT",
                "the engine is paused otherwise, and an abort would wait for its frozen requests "
                "without an end; continue it first");
      return true;
    }
  } else if (IsPaused(core) || !IsRegistryQuiet(core)) {
    return false;
  }
  core.calls.serving = ticket;
  BeginForFramework(core, call);
  return true;
}

bool Take(Core& core, uint64_t ticket, const ContinueCall&) {
  if (IsPaused(core) && !core.pause.by_framework && !IsResuming(core)) {
    // Lorry's own pause is not the framework's to end; the engine goes on by itself.
    AnswerNow(core, ticket, Outcome::kOk, "", "");
    return true;
  }
  // Also where a vLLM drains first and nobody waits for that any more: of several data-parallel
  // ranks, some may take the end of a pause that others have yet to agree on, and wait for these.
  if (IsPaused(core) && !IsHeldByFramework(core)) return false;
  if (!IsPaused(core) && (core.boot.empty() || !core.answers)) {
    AnswerNow(core, ticket, Outcome::kUnsent, "ENGINE_UNREACHABLE", "the engine does not answer");
    return true;
  }
  core.calls.serving = ticket;
  EndForFramework(core);
  return true;
}

}  // namespace

void HandleCall(Core& core, const CallMade& event) { core.calls.waiting.push_back(event); }

void HandleCallLeft(Core& core, const CallLeft& event) {
  if (core.calls.serving == event.ticket) core.calls.serving = 0;
  std::erase_if(core.calls.waiting, [&](const CallMade& made) {
    // A framework that has gone still means that the engine goes on.
    return made.ticket == event.ticket && !std::holds_alternative<ContinueCall>(made.call);
  });
}

void AnswerNow(Core& core, uint64_t ticket, Outcome outcome, std::string reason,
               std::string detail) {
  core.calls.answers.push_back({ticket, outcome, std::move(reason), std::move(detail)});
}

bool IsRestAsked(const Core& core) {
  return std::ranges::any_of(core.calls.waiting, [](const CallMade& made) {
    return !std::holds_alternative<ContinueCall>(made.call);
  });
}

void AnswerServed(Core& core, Outcome outcome, std::string reason, std::string detail) {
  const uint64_t ticket = std::exchange(core.calls.serving, 0);
  if (ticket != 0) AnswerNow(core, ticket, outcome, std::move(reason), std::move(detail));
}

void AnswerCalls(Core& core) {
  for (AnswerCall& answer : std::exchange(core.calls.answers, {}))
    core.effects.push_back(std::move(answer));
}

bool AdvanceCalls(Core& core) {
  auto& waiting = core.calls.waiting;
  bool any = false;
  while (!waiting.empty() && core.calls.serving == 0 && core.memory.op == 0) {
    const CallMade made = waiting.front();
    const bool is_taken =
        std::visit([&](const auto& call) { return Take(core, made.ticket, call); }, made.call);
    if (!is_taken) break;
    waiting.pop_front();
    any = true;
  }
  return any;
}

}  // namespace lorry::proxy
