// Rows: what the door does with an adapter's bare name (docs/SEMANTICS.md §4, §5). A row stands on
// the last decision that was LOADED here; HELD is this process's own and ends by its deadline,
// LOCKED is the journal's and ends by a decision alone.
#pragma once

#include <optional>

#include "services/engine_proxy/machine/state.h"

namespace lorry::proxy {

// Moves each row towards what Desired says of it.
void AdvanceRows(Core& core);

fleet::RowMode ModeOf(const Core& core, const Row& row);

// The mode that can be reported: HELD and LOCKED only once every io_context admits nothing.
fleet::RowMode ReportedModeOf(const Core& core, const Row& row);

std::optional<Tick> RowWakeAt(const Core& core);

}  // namespace lorry::proxy
