// Adapters as frameworks ask engines to load and unload them: SGLang's /load_lora_adapter,
// /load_lora_adapter_from_tensors and /unload_lora_adapter, vLLM's of the same names below /v1, and
// those of servers that frameworks wrap around vLLM: TRL's /load_lora_adapter/, prime-rl's
// /load_lora_adapter and SkyRL's /skyrl/v1/load_lora_adapter, which all replace what the name stood
// for.
//
// Pure functions, any thread. Bodies come from the network.
#pragma once

#include <cstdint>
#include <optional>
#include <variant>

#include "services/engine_proxy/door/call.h"
#include "services/engine_proxy/machine/effects.h"

namespace lorry::calls {

using BindCall = std::variant<proxy::BindAsked, proxy::UnbindAsked>;

// What the call asks for, or its refusal; none where its path is another's.
std::optional<std::variant<BindCall, door::Refused>> ReadBindCall(const door::EngineCall& call);
proxy::Event EventOf(const BindCall& call, uint64_t ticket);

// What a framework is told of the engine without asking it; none where its path is another's.
std::optional<door::CallReply> ReplyAtOnce(const door::EngineCall& call);

// What its caller hears of it, in the engine's own words and shape.
door::CallAnswer AnswerTo(const door::EngineCall& call, const proxy::AnswerBinding& answer);

}  // namespace lorry::calls
