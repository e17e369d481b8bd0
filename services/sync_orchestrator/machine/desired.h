// Desired: the document of each member as parts, one for each adapter. A part is computed again when
// something changed that it depends on (changes.h); members that want the same share it.
#pragma once

#include "services/sync_orchestrator/machine/state.h"

namespace lorry::sync {

// Computes again what has changed, and sends nothing.
void RefreshDocuments(Core& core);

// Says what changed, and again what was not answered for resend_ms.
void AdvanceDesired(Core& core);

// Nothing is desired of the member any more, and nothing is held for it.
void DropDocument(Core& core, Member& member);
// The adapter is gone, for members that have no session as well.
void DropFromDocuments(Core& core, const AdapterName& adapter);

// At the end of all steps of one Ready. Of the documents for one member the newest is sent alone: an
// earlier one may follow a decision that a later step overtook, and that no record holds.
void SendDocuments(Core& core);

// The member has reported: a document that it answers is not sent again.
void NoteAnswer(Core& core, const Member& member);

// Whether the member has answered all that its document says by now.
bool IsAnswered(const Core& core, const Member& member);

// Whether the member's last answer reflects the last document sent to it, and all of it came true.
bool IsCurrent(const Member& member);

}  // namespace lorry::sync
