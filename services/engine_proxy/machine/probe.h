// What is asked of a version before it is LOADED, and what the answer says of it
// (docs/SEMANTICS.md §7, probe). Pure functions.
#pragma once

#include <optional>
#include <string>

#include "services/engine_proxy/machine/events.h"

namespace lorry::proxy {

fleet::ProbeKind ProbeKindFor(fleet::ProbeRule rule, const fleet::VersionTraits& traits);

struct ProbeVerdict {
  bool passes = true;
  std::string reason;  // passes: UNPROVEN or empty
  std::string detail;
};
// Of an answer that came. `compared`: with fleet::ProbeKind::kCompare, where the engine gave
// log-probabilities.
ProbeVerdict JudgeProbe(fleet::ProbeRule rule, const fleet::VersionTraits& traits,
                        const std::optional<fleet::ProbeComparison>& compared);

}  // namespace lorry::proxy
