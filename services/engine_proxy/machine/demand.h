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

// Whether the version must be LOADED now: because Desired says so, or because it is loaded on
// demand and has yet to be proven here, before which the row does not follow the decision for it.
bool MustBeLoaded(const Core& core, const Residency& residency);

// Its place, from 0, in the order in which versions are loaded for requests that wait; none: no
// request waits for it.
std::optional<uint32_t> PlaceOf(const Core& core, const Residency& residency);

// Whether it would be loaded now if it had a slot: because it must be, or requests wait for it.
bool IsNeededNow(const Core& core, const Residency& residency);

// For people: why requests of the row's target wait.
std::string WhyAway(const Core& core, const Residency& residency);
// Whether its load, of which the engine never heard, is tried again later than now.
bool IsPutOff(const Core& core, const Residency& residency);

// Why this engine would serve other weights than its digest certifies, or none; empty: it would not.
// What was made for one engine may stand in a journal behind which another kind of engine comes.
std::string WhyUnservable(const Core& core, const Residency& residency);

}  // namespace lorry::proxy
