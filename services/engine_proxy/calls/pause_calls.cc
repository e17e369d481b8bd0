#include "services/engine_proxy/calls/pause_calls.h"

#include <span>
#include <string_view>
#include <utility>

#include "lib/base/strings.h"
#include "services/engine_proxy/calls/query.h"
#include "services/engine_proxy/door/json_splice.h"

namespace lorry::calls {
namespace {

using door::Refused;
using fleet::EngineKind;
using fleet::PauseKind;
using proxy::ContinueCall;
using proxy::FrameworkCall;
using proxy::Outcome;
using proxy::PauseCall;
using Read = std::variant<FrameworkCall, Refused>;

constexpr std::string_view kJson = "application/json";
constexpr int kRetrySoonS = 2;

Refused Invalid(std::string message) { return {400, "REQUEST_INVALID", std::move(message)}; }

// {"mode": ...}, an abort where it says nothing; what else stands there the engine would pass over.
Read ReadSglangPause(const door::EngineCall& call) {
  PauseCall pause;
  if (call.body.empty()) return FrameworkCall(pause);
  const door::PaddedBody body{std::string(call.body)};
  const auto fields = ObjectFields(body);
  if (!fields.ok()) return Invalid(std::string(ToStd(fields.status().message())));
  const door::JsonField* mode = door::FindField(*fields, "mode");
  if (mode == nullptr) return FrameworkCall(pause);
  const std::string_view word = body.Text(mode->value);
  if (word == R"("abort")") return FrameworkCall(pause);
  if (word == R"("retract")") return FrameworkCall(PauseCall{PauseKind::kRetract});
  if (word == R"("in_place")") return FrameworkCall(PauseCall{PauseKind::kInPlace});
  return Invalid("mode must be \"abort\", \"retract\" or \"in_place\"");
}

// ?mode=abort&clear_cache=true, which is also what it means without.
Read ReadVllmPause(const door::EngineCall& call) {
  const std::vector<QueryField> fields = QueryFields(call.query);
  PauseCall pause{PauseKind::kAbort, true};
  const std::string_view mode = FindInQuery(fields, "mode").value_or("abort");
  if (mode == "wait") {
    pause.kind = PauseKind::kWait;
  } else if (mode == "keep") {
    pause.kind = PauseKind::kKeep;
  } else if (mode != "abort") {
    return Invalid("mode must be abort, wait or keep");
  }
  const std::optional<bool> flush = TruthOf(FindInQuery(fields, "clear_cache").value_or("true"));
  // As it was called before there were modes.
  const std::optional<bool> waits =
      TruthOf(FindInQuery(fields, "wait_for_inflight_requests").value_or("false"));
  if (!flush.has_value() || !waits.has_value())
    return Invalid("clear_cache and wait_for_inflight_requests must be true or false");
  pause.flush = *flush;
  if (*waits) pause.kind = PauseKind::kWait;
  return FrameworkCall(pause);
}

// It aborts what runs and drops the caches, and takes no field.
Read ReadArealPause(const door::EngineCall&) {
  return FrameworkCall(PauseCall{PauseKind::kAbort, true});
}

Read ReadContinue(const door::EngineCall&) { return FrameworkCall(ContinueCall{}); }

struct Spelling {
  EngineKind engine;
  std::string_view path;
  Read (*read)(const door::EngineCall&);
  std::string_view reply;  // of the engine that has done it
};
constexpr Spelling kSpellings[] = {
    {EngineKind::kSglang, "/pause_generation", ReadSglangPause,
     R"({"message":"Generation paused successfully.","status":"ok"})"},
    {EngineKind::kSglang, "/continue_generation", ReadContinue,
     R"({"message":"Generation continued successfully.","status":"ok"})"},
    {EngineKind::kVllm, "/pause", ReadVllmPause, R"({"status":"paused"})"},
    {EngineKind::kVllm, "/resume", ReadContinue, R"({"status":"resumed"})"},
    {EngineKind::kVllm, "/areal_pause_generation", ReadArealPause,
     R"({"success":true,"message":"Generation paused and all requests aborted"})"},
    {EngineKind::kVllm, "/areal_continue_generation", ReadContinue,
     R"({"success":true,"message":"Generation continued"})"},
};

const Spelling* Find(const door::EngineCall& call) {
  for (const Spelling& spelling : kSpellings) {
    if (spelling.engine == call.engine && spelling.path == call.path) return &spelling;
  }
  return nullptr;
}

int StatusOf(const proxy::AnswerCall& answer) {
  switch (answer.outcome) {
    case Outcome::kOk:
      return 200;
    case Outcome::kRefused:
      return 409;
    case Outcome::kFailed:
      return 500;
    case Outcome::kUnsent:
      return 503;
    case Outcome::kBroken:
      return 502;
    case Outcome::kUnknown:
      return 504;
  }
  return 500;
}

}  // namespace

std::optional<std::variant<FrameworkCall, Refused>> ReadPauseCall(const door::EngineCall& call) {
  const Spelling* spelling = Find(call);
  if (spelling == nullptr) return std::nullopt;
  return spelling->read(call);
}

door::CallAnswer AnswerTo(const door::EngineCall& call, const proxy::AnswerCall& answer) {
  const Spelling* spelling = Find(call);
  if (answer.outcome == Outcome::kOk && spelling != nullptr)
    return door::CallReply{200, std::string(kJson), std::string(spelling->reply)};
  const bool is_worth_another = answer.outcome == Outcome::kUnsent;
  return Refused{StatusOf(answer), answer.reason.empty() ? "ENGINE_FAILED" : answer.reason,
                 answer.detail, is_worth_another ? kRetrySoonS : 0};
}

}  // namespace lorry::calls
