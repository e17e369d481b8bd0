// Slot arithmetic: whether one more version fits into every engine's registry, and who holds the
// slots when not. MAY versions that are idle make room; MUST versions, what is in flight and what a
// row serves do not. What should be on an engine is what its document says: whoever asks has had
// the documents refreshed before.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "services/sync_orchestrator/machine/state.h"

namespace lorry::sync {

struct SlotVerdict {
  std::set<MemberId> without_slot;
  std::string
      detail;  // for people: the arithmetic of one full member and the names that hold its slots
};

// Whether `version` can be staged on each of `members`, by what they desire and report now.
SlotVerdict CheckSlots(const Core& core, const std::vector<const Member*>& members,
                       const VersionInfo& version);

// Whether a lease on `version` leaves a slot for staging on every READY member of the pool; the
// refusal's text when not.
std::string WhyNoSlotForLease(const Core& core, const PoolName& pool, const VersionInfo& version);

// What a pool asks of each of its engines, over all of its adapters.
struct SlotDemand {
  uint32_t needed = 0;
  uint32_t kept = 0;
  std::string arithmetic;  // for people: a term an adapter
};
SlotDemand DemandOf(const Core& core, const PoolName& pool);

// The demand against one engine's limits. Told, not refused: docs/adr/0006.
SlotNeed NeedOf(const SlotDemand& demand, const fleet::EngineLimits& limits);

}  // namespace lorry::sync
