// What is said to whoever names a pool that an adapter's policy does not name. Pure, any thread.
#pragma once

#include "absl/status/status.h"
#include "lib/fleet/policy.h"

namespace lorry::fleet {

// NOT_FOUND UNKNOWN_POOL, with the pools that the policy names and those that may have been meant.
absl::Status UnknownPool(const AdapterName& adapter, const AdapterPolicy& policy,
                         const PoolName& pool);

}  // namespace lorry::fleet
