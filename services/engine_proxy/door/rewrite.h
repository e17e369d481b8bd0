// The body that the engine gets instead of the client's.
//
// Pure functions, any thread. Only the adapter reference changes, and on SGLang the request's id
// (which must be unique and of one length, because SGLang aborts by prefix) and `n` where it is
// split; every other byte stays.
#pragma once

#include <string>
#include <vector>

#include "services/engine_proxy/door/body_facts.h"
#include "services/engine_proxy/door/router.h"

namespace lorry::door {

// What to change in the body. `resolved` and `ids` as BodyFacts::adapters and batch ask: one, or one
// each.
std::vector<Edit> RewriteEdits(fleet::EngineKind kind, BodyShape shape, const EngineFacts& engine,
                               const BodyFacts& facts, const std::vector<Resolved>& resolved,
                               const std::vector<std::string>& ids, bool split_n);

}  // namespace lorry::door
