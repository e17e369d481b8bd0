#include "lib/base/error.h"

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "lib/base/strings.h"

namespace lorry {
namespace {
constexpr char kReasonPayload[] = "lorry.reason";
}

absl::Status Error(absl::StatusCode code, std::string_view reason, std::string_view message) {
  absl::Status status(code, ToAbsl(message));
  if (!reason.empty()) status.SetPayload(kReasonPayload, absl::Cord(ToAbsl(reason)));
  return status;
}

std::string ReasonOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kReasonPayload);
  return payload.has_value() ? std::string(*payload) : std::string();
}

absl::Status Annotate(const absl::Status& status, std::string_view context) {
  if (status.ok()) return status;
  return Error(status.code(), ReasonOf(status),
               absl::StrCat(ToAbsl(context), ": ", status.message()));
}

}  // namespace lorry
