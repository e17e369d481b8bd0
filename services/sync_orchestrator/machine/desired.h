// Desired: the document that each member was sent last, and when it is sent another one.
#pragma once

#include "services/sync_orchestrator/machine/state.h"

namespace lorry::sync {

// Sends Desired where it differs from what was sent, or where an answer is overdue.
void AdvanceDesired(Core& core);

// Whether the member's last answer reflects the last document sent to it, and all of it came true.
bool IsCurrent(const Member& member);

}  // namespace lorry::sync
