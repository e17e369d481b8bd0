// Adapters that are loaded on demand (docs/SEMANTICS.md §6): their rows stay OPEN while what they
// stand on is away from the engine, and requests wait at the door until it is back.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "services/engine_proxy/machine/state.h"

namespace lorry::proxy {

// Whether a row that stands on it stays OPEN while it is not LOADED.
bool IsOnDemand(const Core& core, const EngineName& name);

// Whether it must be LOADED now: Desired says so, or it is loaded on demand and the row has yet to
// follow the decision for it, which it does once the version was proven here.
bool MustBeLoaded(const Core& core, const Residency& residency);

// Its place among those that requests wait for, the first of which is 0; none: nobody waits for it.
std::optional<uint32_t> PlaceOf(const Core& core, const Residency& residency);

// Whether it would be loaded now, but for a slot: it must be, or requests wait for it.
bool IsNeededNow(const Core& core, const Residency& residency);

// For people: why requests of the row's target wait.
std::string WhyAway(const Core& core, const Residency& residency);

}  // namespace lorry::proxy
