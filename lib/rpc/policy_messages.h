// Between fleet::AdapterPolicy and lorry.common.v1.AdapterPolicy. Pure functions, any thread.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/fleet/policy.h"
#include "lorry/common/v1/adapter.pb.h"

namespace lorry::rpc {

// Fills in every default. INVALID_ARGUMENT POLICY_INVALID says which field to change and to what.
absl::StatusOr<fleet::AdapterPolicy> PolicyFromProto(const common::v1::AdapterPolicy& policy);

// INVALID_ARGUMENT POLICY_INVALID where values contradict each other; it says what to set instead. Asked
// where a policy is set: one that was stored before a combination was refused is still read.
absl::Status CheckMaySet(const fleet::AdapterPolicy& policy);

// With every default written out.
common::v1::AdapterPolicy PolicyToProto(const fleet::AdapterPolicy& policy);

}  // namespace lorry::rpc
