// Calls of frameworks that release the engine's memory, take it again, or give it other weights:
// SGLang's /release_memory_occupation, /resume_memory_occupation and /update_weights_from_*, vLLM's
// /sleep, /wake_up, /update_weights and /collective_rpc, and AReaL's own on the vLLM servers that it
// starts. The engine gets them as they came and
// answers them itself; read is only what the machine must know.
//
// Pure functions, any thread. Bodies come from the network.
#pragma once

#include <optional>
#include <variant>

#include "services/engine_proxy/door/call.h"
#include "services/engine_proxy/machine/events.h"

namespace lorry::calls {

// What the call asks for, or its refusal; none where its path is another's.
std::optional<std::variant<proxy::FrameworkCall, door::Refused>> ReadMemoryCall(
    const door::EngineCall& call);

}  // namespace lorry::calls
