// absl::Status with a reason (lib/base/error.h) on one side, grpc::Status with google.rpc.ErrorInfo
// on the other.
//
// The details travel as every gRPC client expects them: trailer grpc-status-details-bin holds a
// google.rpc.Status whose one detail is a google.rpc.ErrorInfo{reason, domain "lorry", metadata}.
// Pure functions, any thread.
#pragma once

#include <grpcpp/support/status.h>

#include <map>
#include <string>

#include "absl/status/status.h"

namespace lorry::rpc {

inline constexpr char kErrorDomain[] = "lorry";

// Facts for programs that belong to an error ("adapter": "policy"); people read the message.
using ErrorMetadata = std::map<std::string, std::string>;

// OK stays OK. A status without reason has no details.
grpc::Status ToGrpc(const absl::Status& status, const ErrorMetadata& metadata = {});

// Keeps code, message and reason. Details of another domain, or that cannot be read, are left out.
absl::Status FromGrpc(const grpc::Status& status);

// The metadata of `status`; empty when there is none.
ErrorMetadata MetadataOf(const grpc::Status& status);

}  // namespace lorry::rpc
