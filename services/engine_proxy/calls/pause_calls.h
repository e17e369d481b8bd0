// Pauses as frameworks ask engines for them: SGLang's /pause_generation and /continue_generation,
// vLLM's /pause and /resume, and AReaL's own names for them on the vLLM servers that it starts.
//
// Pure functions, any thread. Bodies come from the network.
#pragma once

#include <optional>
#include <variant>

#include "services/engine_proxy/door/call.h"
#include "services/engine_proxy/machine/effects.h"

namespace lorry::calls {

// What the call asks for, or its refusal; none where its path is another's.
std::optional<std::variant<proxy::FrameworkCall, door::Refused>> ReadPauseCall(
    const door::EngineCall& call);

// What its caller hears of it.
door::CallAnswer AnswerTo(const door::EngineCall& call, const proxy::AnswerCall& answer);

}  // namespace lorry::calls
