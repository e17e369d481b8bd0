// One call to a service, and what is said where nobody answers it.
#pragma once

#include <grpcpp/client_context.h>

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "lib/base/error.h"
#include "lib/rpc/channel.h"
#include "lib/rpc/status.h"

namespace lorry::client {

// A unary call. `context` has its deadline, which is over after `timeout_ms`. `who` names the other
// side where it does not answer.
template <typename Stub, typename Request, typename Response>
absl::StatusOr<Response> Call(Stub& stub,
                              grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                                           Response*),
                              const Request& request, int64_t timeout_ms, const std::string& who,
                              grpc::ClientContext& context) {
  Response response;
  const absl::Status status = rpc::FromGrpc((stub.*method)(&context, request, &response));
  if (status.ok()) return response;
  if (!ReasonOf(status).empty()) return status;
  if (absl::IsUnavailable(status)) return Annotate(status, absl::StrCat(who, " does not answer"));
  // Nobody was there all the while, or nobody who speaks: to the caller it is the same.
  if (absl::IsDeadlineExceeded(status)) {
    return absl::UnavailableError(absl::StrCat(who, " did not answer within ", timeout_ms,
                                               " ms: ", std::string(status.message())));
  }
  return Annotate(status, who);
}

template <typename Stub, typename Request, typename Response>
absl::StatusOr<Response> Call(Stub& stub,
                              grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                                           Response*),
                              const Request& request, int64_t timeout_ms, const std::string& who) {
  grpc::ClientContext context;
  rpc::SetDeadlineIn(context, timeout_ms);
  return Call(stub, method, request, timeout_ms, who, context);
}

}  // namespace lorry::client
