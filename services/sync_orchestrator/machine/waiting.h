// What waits to be synced in a pool that syncs nothing: which version is next, why it does not
// begin yet, and its beginning.
#pragma once

#include <optional>
#include <string>

#include "services/sync_orchestrator/machine/state.h"

namespace lorry::sync {

// What a pool of that policy would sync next: an override, the decision or alias it follows, or the first that
// waits.
struct Candidate {
  const VersionInfo& version;  // of the state that it was asked of
  bool overriding = false;
};
std::optional<Candidate> CandidateOf(const Core& core, const PoolId& id, const Pool& pool,
                                     const fleet::AdapterPolicy& policy);

// Why no engine of the pool can serve the version, by the engines' own limits: what waits for it waits
// in vain until somebody starts an engine with others. Empty while one may, and while one is away
// that may come back with other limits. For who is DEAD, or EXCLUDED by an operator, nobody waits.
std::string WhyNoneFits(const Core& core, const PoolId& id, const VersionInfo& version);

// Begins the next sync of a pool that has none, or says what it waits for.
void AdvanceWaiting(Core& core, const PoolId& id, Pool& pool);
// While the orchestrator's or the store's memory is lost: has every pool say so to whoever waits.
void SayWhatIsLost(Core& core);

// Notes what the pool's next sync waits for; `detail` is for people.
void WaitFor(Core& core, const PoolId& id, Pool& pool, Wait wait, std::string detail = "");

}  // namespace lorry::sync
