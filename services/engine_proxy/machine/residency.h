// Residencies: where each engine name stands on this boot, and what is done next for it
// (docs/machines.md; docs/SEMANTICS.md §1, §6). The rooms: fetching, loading, slots, unload,
// verdicts.
#pragma once

#include <optional>

#include "services/engine_proxy/machine/residency_table.h"
#include "services/engine_proxy/machine/state.h"

namespace lorry::proxy {

// The one place where a residency changes its state: looks the event up in the table, goes to the
// next state, asks and writes down what the table says. What only the next state has is the
// caller's to fill in, and what is written down the caller's to set before. False: the event means
// nothing in this state, and nothing happened.
bool Move(Core& core, Residency& residency, ResidencyEvent event);

// To FAILED by `event`; it is tried again later, each time after twice as long.
void Fail(Core& core, Residency& residency, ResidencyEvent event, at::Mishap mishap);

ResidencyState StateOf(const Residency& residency);

// Gives every wanted version its residency, and each residency what Desired says of it.
void MeetDesired(Core& core);

// Meets Desired where that is due, begins what can be begun, and forgets what is gone.
void AdvanceResidencies(Core& core);

// Whether something about the name cannot be decided before the engine has been listed.
bool WaitsForList(const Core& core, const Residency& residency);

// Whether the engine may still have it from an earlier process of this proxy, or from before a
// broken connection, and it was not looked at since.
bool MaySurvive(const Core& core, const Residency& residency);

std::optional<Tick> ResidencyWakeAt(const Core& core);

}  // namespace lorry::proxy
