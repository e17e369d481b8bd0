#include "lib/fleet/quiesce.h"

#include <algorithm>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "lib/base/strings.h"

namespace lorry::fleet {
namespace {

// What becomes of the requests that run.
enum class Running { kGoOn, kFinish, kAreFrozen, kAreAborted };

struct Row {
  PauseKind kind;
  std::string_view word;
  bool sglang, vllm;  // who has it
  Running running;
  // SGLang drops its cache only while it is idle, and refuses while requests are frozen. vLLM
  // preempts what it has frozen. A drain leaves requests of other adapters running.
  bool flushes;
};

constexpr Row kTable[] = {
    {PauseKind::kNone, "none", true, true, Running::kGoOn, false},
    {PauseKind::kDrain, "drain", true, true, Running::kFinish, false},
    {PauseKind::kAbort, "abort", true, true, Running::kAreAborted, true},
    {PauseKind::kRetract, "retract", true, false, Running::kAreFrozen, false},
    {PauseKind::kInPlace, "in_place", true, false, Running::kAreFrozen, false},
    {PauseKind::kWait, "wait", false, true, Running::kFinish, true},
    {PauseKind::kKeep, "keep", false, true, Running::kAreFrozen, true},
};

const Row& RowOf(PauseKind kind) { return *std::ranges::find(kTable, kind, &Row::kind); }

bool Has(const Row& row, EngineKind engine) {
  return engine == EngineKind::kSglang ? row.sglang : engine != EngineKind::kVllm || row.vllm;
}

std::string Words(bool (*takes)(const Row&)) {
  std::string words;
  for (const Row& row : kTable) {
    if (takes(row)) absl::StrAppend(&words, words.empty() ? "" : ", ", ToAbsl(row.word));
  }
  return words;
}

}  // namespace

bool IsEnginePause(PauseKind kind) { return kind != PauseKind::kNone && kind != PauseKind::kDrain; }

bool WaitsForRequests(PauseKind kind) { return RowOf(kind).running == Running::kFinish; }

bool CanQuiesce(EngineKind engine, PauseKind kind) { return Has(RowOf(kind), engine); }

std::string WhyNotServable(const EngineLimits& limits, const VersionTraits& traits,
                           const AdapterPolicy& policy) {
  const EngineKind engine = limits.kind;
  if (CanQuiesce(engine, policy.quiesce)) return WhyNotServable(limits, traits);
  const std::string words = engine == EngineKind::kSglang
                                ? Words([](const Row& row) { return row.sglang; })
                                : Words([](const Row& row) { return row.vllm; });
  return absl::StrCat("QUIESCE_UNSUPPORTED",
                      ": the policy says quiesce=", ToAbsl(RowOf(policy.quiesce).word), ", which ",
                      ToAbsl(ToString(engine)), " does not have; set quiesce to one of ", words,
                      ", or keep this engine in a pool that does not serve the adapter");
}

std::string WhyNotTogether(const AdapterPolicy& policy) {
  const Row& row = RowOf(policy.quiesce);
  if (policy.flush == FlushMode::kAlways && !row.flushes) {
    return absl::StrCat(
        "flush=always needs an engine that is at rest, and with quiesce=", ToAbsl(row.word),
        " none is: set quiesce to one of ", Words([](const Row& other) { return other.flushes; }),
        ", or flush=auto: versions never share cached keys and values");
  }
  if (row.running == Running::kAreAborted && policy.in_flight != InFlightMode::kAbort) {
    return "quiesce=abort ends the requests in flight: say in_flight=abort as well, or set "
           "quiesce=drain";
  }
  if (row.running == Running::kAreFrozen && policy.in_flight != InFlightMode::kFinishOnOld) {
    return absl::StrCat("quiesce=", ToAbsl(row.word),
                        " freezes requests, which then go on: set in_flight=finish_on_old, or "
                        "quiesce=drain");
  }
  return "";
}

DesiredPause QuiesceOf(const AdapterPolicy& policy) {
  if (policy.quiesce == PauseKind::kNone) return {};
  return {.kind = policy.quiesce,
          .deadline_ms = policy.HoldLimitMs(),
          .flush = policy.flush == FlushMode::kAlways};
}

}  // namespace lorry::fleet
