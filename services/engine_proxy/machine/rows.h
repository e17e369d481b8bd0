// Rows: what the door does with an adapter's bare name (docs/machines.md; docs/SEMANTICS.md §4, §5).
// A row stands on the last decision that was LOADED here; HELD is this process's own and ends by
// its deadline, LOCKED is the journal's and ends by a decision alone.
#pragma once

#include <optional>

#include "services/engine_proxy/machine/state.h"

namespace lorry::proxy {

// A row as the journal has it. One of another pool begins as a newcomer's: its epochs are that
// pool's, and what it served is nothing that this pool decided.
void RestoreRow(Core& core, const AdapterName& adapter, const RowRecord& record);

// Moves each row towards what Desired says of it.
void AdvanceRows(Core& core);

fleet::RowMode ModeOf(const Row& row);
Epoch HeldEpoch(const Row& row);  // 0: it is not HELD

// The mode that can be reported: HELD and LOCKED only once every io_context admits nothing.
fleet::RowMode ReportedModeOf(const Core& core, const Row& row);

std::optional<Tick> RowWakeAt(const Core& core);

}  // namespace lorry::proxy
