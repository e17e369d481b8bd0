// Syncs: one decision about `latest` of one (adapter, pool) at a time. Before the decision only
// abort, after it only forward; delivering it is what Desired does. Called after every step, over
// what has changed.
#pragma once

#include <optional>
#include <string>

#include "services/sync_orchestrator/machine/state.h"

namespace lorry::sync {

// What a pool would sync next: an override, the decision or alias it follows, or the first that
// waits.
struct Candidate {
  VersionInfo version;
  bool overriding = false;
};
std::optional<Candidate> CandidateOf(const Core& core, const PoolId& id);

// Drops members, decides running syncs, starts waiting ones, where something changed or is due.
void AdvanceSyncs(Core& core);

void HandleOverride(Core& core, const OverrideSet& event);

}  // namespace lorry::sync
