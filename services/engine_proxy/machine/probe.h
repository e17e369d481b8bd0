// What is asked of a version before it is LOADED, and what the answer says of it
// (docs/SEMANTICS.md §7, probe). Pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "services/engine_proxy/machine/events.h"

namespace lorry::proxy {

// What the adapter's policy says of probes.
struct ProbeRules {
  fleet::ProbeMode rule = fleet::ProbeMode::kAuto;
  uint32_t gap_ppm = fleet::kProbeGapPpmDefault;
  auto operator<=>(const ProbeRules&) const = default;
};

fleet::ProbeQuestion QuestionFor(const ProbeRules& rules, const fleet::VersionTraits& traits,
                                 const peft::Reference& reference);

struct ProbeVerdict {
  bool passes = true;
  std::string reason;  // passes: UNPROVEN or empty
  std::string detail;
};
// Judges the answer to that question. `apart_ppm` is the most by which this engine's answers for
// the version have differed from the base model's before (ApartPpm).
ProbeVerdict JudgeProbe(const ProbeRules& rules, const fleet::VersionTraits& traits,
                        const fleet::ProbeAnswer& answer, uint32_t apart_ppm);

// By how much the answer differs from the base model's, in millionths of a nat; 0 where it does not
// differ beyond the noise, or where nothing was compared.
uint32_t ApartPpm(const fleet::ProbeAnswer& answer);

}  // namespace lorry::proxy
