// Operating errors: absl::Status with a machine-readable reason.
//
// A reason is one word in UPPER_SNAKE from docs/ERRORS.md. It travels in the status' payload here
// and as google.rpc.ErrorInfo on the wire (lib/rpc converts). A new reason exists only if someone
// reacts to it. The message says what happened, to which adapter, version or engine, and what the
// reader can do.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lorry {

// Error(absl::StatusCode::kAlreadyExists, "VERSION_CONFLICT", "policy r1.7 is stored with other
// bytes; ...").
absl::Status Error(absl::StatusCode code, std::string_view reason, std::string_view message);

// The reason of `status`, empty when it carries none.
std::string ReasonOf(const absl::Status& status);

// Prepends "context: ", keeps code and reason. OK stays OK.
absl::Status Annotate(const absl::Status& status, std::string_view context);

}  // namespace lorry

#define LORRY_RETURN_IF_ERROR(expr)                                            \
  do {                                                                         \
    if (absl::Status _lorry_status = (expr); !_lorry_status.ok()) [[unlikely]] \
      return _lorry_status;                                                    \
  } while (false)

#define LORRY_CONCAT_INNER(a, b) a##b
#define LORRY_CONCAT(a, b) LORRY_CONCAT_INNER(a, b)
#define LORRY_ASSIGN_OR_RETURN(lhs, expr) \
  LORRY_ASSIGN_OR_RETURN_IMPL(LORRY_CONCAT(_lorry_or_, __LINE__), lhs, expr)
#define LORRY_ASSIGN_OR_RETURN_IMPL(tmp, lhs, expr) \
  auto tmp = (expr);                                \
  if (!tmp.ok()) [[unlikely]]                       \
    return tmp.status();                            \
  lhs = *std::move(tmp)
