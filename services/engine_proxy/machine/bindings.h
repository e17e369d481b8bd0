// Bindings (docs/SEMANTICS.md §9): names that frameworks give to adapters at this door, and calls
// that bind and unbind them.
//
// Each content has an engine name of its own, which its digest certifies, so that nothing is ever
// replaced in place: a binding that is bound anew stands on another engine name from then on, and
// requests that were admitted before end on the old one. A target is wanted as Desired's versions
// are, and loaded on demand: it makes room while it is idle, and comes back for who asks for it.
#pragma once

#include <optional>

#include "services/engine_proxy/machine/state.h"

namespace lorry::proxy {

void RestoreBinding(Core& core, const std::string& client_name, const BindingRecord& record);

void HandleBind(Core& core, const BindAsked& event);
void HandleUnbind(Core& core, const UnbindAsked& event);
void HandleBindingRead(Core& core, const BindingRead& event);

// It was bound just now, and makes no room yet.
bool IsJustBound(const Core& core, const EngineName& name);

// Judges the calls, and reads the next directory. Whether what is wanted has changed.
bool AdvanceBindings(Core& core);
// Behind the door's table, by which a name that was bound can be used.
void AnswerBindCalls(Core& core);

std::optional<Tick> BindingsWakeAt(const Core& core);

}  // namespace lorry::proxy
