// Syncs: one decision about `latest` of one (adapter, pool) at a time. Before the decision only
// abort, after it only forward; delivering it is what Desired does. Called after every step, over
// the whole state.
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

// Drops members, decides running syncs, starts waiting ones.
void AdvanceSyncs(Core& core);

void HandleOverride(Core& core, const OverrideSet& event);

// When the running sync, or what waits, must be looked at again.
std::optional<Tick> SyncWakeAt(const Core& core);

}  // namespace lorry::sync
