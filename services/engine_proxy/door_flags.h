// The door's times and sizes as flags of the program. main's thread only.
#pragma once

#include "absl/status/statusor.h"
#include "services/engine_proxy/door/door.h"

namespace lorry::proxy {

// INVALID_ARGUMENT names the flag whose value cannot be meant.
absl::StatusOr<door::DoorLimits> DoorLimitFlags();

}  // namespace lorry::proxy
