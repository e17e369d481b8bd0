// Between fleet::AdapterPolicy and lorry.common.v1.AdapterPolicy. Pure functions, any thread.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/fleet/policy.h"
#include "lorry/common/v1/adapter.pb.h"

namespace lorry::rpc {

// Fills in every default. INVALID_ARGUMENT POLICY_INVALID says which field to change and to what.
absl::StatusOr<fleet::AdapterPolicy> PolicyFromProto(const common::v1::AdapterPolicy& policy);

// What may be set anew. INVALID_ARGUMENT POLICY_INVALID names a value that has its place in the
// message and is not built yet, and what to set instead. Policies stored before it was refused are
// still read.
absl::Status CheckBuilt(const fleet::AdapterPolicy& policy);

// With every default written out.
common::v1::AdapterPolicy PolicyToProto(const fleet::AdapterPolicy& policy);

}  // namespace lorry::rpc
