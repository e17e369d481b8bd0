// absl::Status with a reason (lib/base/error.h) on one side, grpc::Status with google.rpc.ErrorInfo
// on the other.
//
// The details travel as every gRPC client expects them: trailer grpc-status-details-bin holds a
// google.rpc.Status whose one detail is a google.rpc.ErrorInfo{reason, domain "lorry"}.
// Pure functions, any thread.
#pragma once

#include <grpcpp/support/status.h>

#include "absl/status/status.h"

namespace lorry::rpc {

inline constexpr char kErrorDomain[] = "lorry";

// OK stays OK. A status without reason has no details.
grpc::Status ToGrpc(const absl::Status& status);

// Keeps code, message and reason. Details of another domain, or that cannot be read, are left out.
absl::Status FromGrpc(const grpc::Status& status);

}  // namespace lorry::rpc
