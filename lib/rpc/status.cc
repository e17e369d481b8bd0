#include "lib/rpc/status.h"

#include <string>

#include "lib/base/error.h"
#include "lib/base/strings.h"
#include "lib/base/utf8.h"
#include "lorry/common/v1/status.pb.h"

namespace lorry::rpc {
namespace {

constexpr char kErrorInfoType[] = "type.googleapis.com/google.rpc.ErrorInfo";
// gRPC's default limit for all metadata of a call is 8 KiB, and the message travels twice (as text
// and in the details).
constexpr size_t kMessageBytesMax = 2048;

std::string EncodeDetails(const absl::Status& status, const std::string& message) {
  common::v1::RpcErrorInfo info;
  info.set_reason(ReasonOf(status));
  info.set_domain(kErrorDomain);

  common::v1::RpcStatus details;
  details.set_code(static_cast<int>(status.code()));
  details.set_message(message);
  google::protobuf::Any* any = details.add_details();
  any->set_type_url(kErrorInfoType);
  any->set_value(info.SerializeAsString());
  return details.SerializeAsString();
}

// The first ErrorInfo of our domain; an empty one when there is none.
common::v1::RpcErrorInfo InfoOf(const grpc::Status& status) {
  common::v1::RpcStatus details;
  common::v1::RpcErrorInfo info;
  if (!details.ParseFromString(status.error_details())) return {};
  for (const google::protobuf::Any& any : details.details()) {
    if (any.type_url() == kErrorInfoType && info.ParseFromString(any.value()) &&
        info.domain() == kErrorDomain) {
      return info;
    }
  }
  return {};
}

}  // namespace

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const std::string message = Utf8(ToStd(status.message()), kMessageBytesMax);
  const auto code = static_cast<grpc::StatusCode>(status.code());
  if (ReasonOf(status).empty()) return grpc::Status(code, message);
  const std::string details = EncodeDetails(status, message);
  return grpc::Status(code, message, details);
}

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  // Codes beyond the sixteen that exist come from a broken peer.
  const int code = status.error_code();
  const auto known =
      code > 0 && code <= 16 ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown;
  std::string reason = InfoOf(status).reason();
  // Whoever is not known is refused by gRPC's own security layer, which has no room for a reason.
  if (reason.empty() && known == absl::StatusCode::kUnauthenticated) reason = "UNAUTHENTICATED";
  std::string message = status.error_message();
  // A gRPC server says nothing about a call that it does not have.
  if (message.empty() && known == absl::StatusCode::kUnimplemented) {
    message =
        "the service has no such call: it is older than this program, or another service answers "
        "at this address";
  }
  return Error(known, reason, message);
}

}  // namespace lorry::rpc
