// `lorry doctor`: findings about services, engines and this machine, each with a remedy.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "clients/cli/context.h"
#include "lib/fleet/policy.h"

namespace lorry::cli {

struct Finding {
  enum class Grade { kGood, kWarning, kBad };
  Grade grade = Grade::kGood;
  std::string what;
  std::string remedy = {};
};

// Slots that adapters need on a member, against those it has (docs/SEMANTICS.md §6): every adapter
// of its pool wants its window and one to load the next into, and one for each alias and lease; those
// that are loaded on demand share one, and one for the next. Pure.
struct SlotDemand {
  std::string adapter;
  uint32_t keep = 2;  // fleet::AdapterPolicy::KeepCount()
  uint32_t aliases = 0;
  uint32_t leases = 0;
  bool on_demand = false;
};
// No slots: SGLang has no limit then; vLLM always has one, and tells it in dev mode alone.
Finding JudgeSlots(const std::string& member, fleet::EngineKind kind, uint32_t slots,
                   const std::vector<SlotDemand>& demands);

// Who runs which version of Lorry, "this program" among them; a warning where two differ before the
// last dot, as messages may have changed between them. Pure.
Finding JudgeVersions(const std::map<std::string, std::string>& version_by_name);

// A certificate that ends at `end`, Unix seconds, or none that can be read: a warning in its last week.
// `renew`: what to do then. Pure.
Finding JudgeCertificate(const std::string& whose, std::optional<int64_t> end, int64_t now,
                         const std::string& renew);

std::vector<Finding> LookAtMachine();
std::string RenderFindings(const std::vector<Finding>& findings, bool colour);

// The verb. Exit status 1 when something is broken.
absl::StatusOr<int> Doctor(Context& context, const Arguments& arguments);

}  // namespace lorry::cli
