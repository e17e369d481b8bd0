// Desired: the document of each member as parts, one for each adapter. A part is computed again
// when something changed that it depends on (changes.h); members that want the same share it.
#pragma once

#include <cstddef>

#include "services/sync_orchestrator/machine/state.h"

namespace lorry::sync {

// In one document. A proxy reads 10,000 of a kind (lib/rpc/fleet_messages.cc), and reports to the
// orchestrator, which reads as many, what it is still to let go of besides. Of what MAY be there the
// oldest is left out first.
inline constexpr size_t kWantedMax = 8'000;

// Versions that all parts want, with those that SetDesired::Whole leaves out.
size_t CountWanted(const SetDesired& message);

// Computes again what has changed, and sends nothing.
void RefreshDocuments(Core& core);

// Sends members what changed for them, and sends again what was not answered for resend_ms.
void AdvanceDesired(Core& core);

// Forgets what is desired of the member, and what is held for it at the store.
void DropDocument(Core& core, Member& member);
// Takes the adapter, which is gone, out of all documents, also of members that have no session.
void DropFromDocuments(Core& core, const AdapterName& adapter);

// To be called at the end of all steps of one Ready. Each member is sent its newest document alone:
// an earlier one may be by a decision that a later step replaced and that is in no record.
void SendDocuments(Core& core);

// To be called when the member has reported: a document that this answers is not sent again.
void NoteAnswer(Core& core, const Member& member);

// Whether the member has answered all that its document says by now.
bool IsAnswered(const Core& core, const Member& member);

// Whether the member's last answer reflects the last document sent to it, and all of it came true.
bool IsCurrent(const Member& member);

}  // namespace lorry::sync
