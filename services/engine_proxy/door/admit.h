// Resolves and counts a request, waiting at HELD rows for as long as the policy lets it.
#pragma once

#include <cstdint>
#include <optional>

#include "services/engine_proxy/door/client.h"
#include "services/engine_proxy/door/router.h"

namespace lorry::door {

// Never `Held`; nothing when the client left meanwhile. `held_ms` becomes how long it waited.
Task<std::optional<Outcome>> Admit(Shard& shard, Client& client, const Ask& ask, int64_t* held_ms);

}  // namespace lorry::door
