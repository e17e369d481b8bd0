// Bindings (docs/SEMANTICS.md §9): names that frameworks give to adapters at this door, and calls
// that bind and unbind them.
//
// Each content has an engine name of its own, which its digest certifies, so that nothing is ever
// replaced in place: a binding that is bound anew stands on another engine name from then on, and
// requests that were admitted before end on the old one. The version that a binding stands on is
// wanted as those of Desired are, and is loaded on demand: it makes room while it is idle, and is
// loaded again for the next request.
#pragma once

#include <optional>

#include "services/engine_proxy/machine/state.h"

namespace lorry::proxy {

void RestoreBinding(Core& core, const std::string& client_name, const BindingRecord& record);

void HandleBind(Core& core, const BindAsked& event);
void HandleUnbind(Core& core, const UnbindAsked& event);
void HandleBindingRead(Core& core, const BindingRead& event);

// Whether it was bound just now, and need not make room yet.
bool IsJustBound(const Core& core, const EngineName& name);

// Judges the calls, and reads the next directory. True: what is wanted has changed.
bool AdvanceBindings(Core& core);
// Answers the calls that bind. The answers follow the door's table, so that a name can be used as
// soon as its caller is told of it.
void AnswerBindCalls(Core& core);

std::optional<Tick> BindingsWakeAt(const Core& core);

}  // namespace lorry::proxy
