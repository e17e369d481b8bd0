// The wait of a request at HELD rows, and for an adapter that is loaded on demand, for as long as the
// policy lets it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "services/engine_proxy/door/client.h"
#include "services/engine_proxy/door/router.h"

namespace lorry::door {

// What becomes of a request that resolved to `held`: no longer `Held`; nothing when the client left
// meanwhile, or aborted it (`live`, which vLLM's requests do not have). `held_ms` becomes how long it
// waited.
Task<std::optional<Resolution>> WaitWhileHeld(Shard& shard, Client& client,
                                              std::shared_ptr<LiveRequest> live, const Ask& ask,
                                              Held held, int64_t* held_ms);

// What is told to whoever waits, or would have to, while the door drains.
Refused Draining();

}  // namespace lorry::door
