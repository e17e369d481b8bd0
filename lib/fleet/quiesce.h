// Quiesce: how an engine is brought to rest before a row is LOCKED or flips, and which settings of
// a policy go together (docs/SEMANTICS.md §4). One table says it for every kind of pause. Pure, any
// thread.
#pragma once

#include <string>

#include "lib/fleet/policy.h"

namespace lorry::fleet {

// Whether the engine itself is paused; a drain leaves it alone and waits for the door's counts.
bool IsEnginePause(PauseKind kind);

// Whether what runs is waited for, which may take as long as a request does.
bool WaitsForRequests(PauseKind kind);

// Whether engines of that kind have such a pause. True where the kind is not known yet.
bool CanQuiesce(EngineKind engine, PauseKind kind);

// Why an engine cannot serve the version under that policy, and what to do; empty when it can.
std::string WhyNotServable(const EngineLimits& limits, const VersionTraits& traits,
                           const AdapterPolicy& policy);

// Why no engine of any kind can do what the policy asks of pauses, flushes and requests in flight
// together, and what to set instead; empty when one can.
std::string WhyNotTogether(const AdapterPolicy& policy);

// What rows of such a policy ask of their engines.
DesiredPause QuiesceOf(const AdapterPolicy& policy);

}  // namespace lorry::fleet
