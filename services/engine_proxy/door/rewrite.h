// The body that the engine gets instead of the client's.
//
// Pure functions, any thread. Only the adapter reference changes, and on SGLang the request's id
// (which must be unique and of one length, because SGLang aborts by prefix) and `n`, which
// becomes 1; every other byte stays.
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
                               const std::vector<std::string>& ids);

// The name, as JSON, that a reply must show as its model's: what was asked for. Empty where the
// engine's own words are that.
std::string ReplyModel(fleet::EngineKind kind, BodyShape shape, const EngineFacts& engine,
                       const BodyFacts& facts, const std::vector<Resolved>& resolved);

}  // namespace lorry::door
