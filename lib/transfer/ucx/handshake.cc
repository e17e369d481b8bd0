#include "lib/transfer/ucx/handshake.h"

#include "absl/strings/str_cat.h"
#include "lib/base/error.h"
#include "lib/base/strings.h"
#include "lib/transfer/ucx/host_proof.h"
#include "lib/transfer/ucx/ucx_transport.h"

namespace lorry::transfer::ucx {
namespace {

absl::Status Unavailable(std::string_view why) {
  return Error(absl::StatusCode::kFailedPrecondition, "LANE_UNAVAILABLE",
               absl::StrCat(ToAbsl(why), "; use gRPC"));
}

std::string_view MajorMinor(std::string_view version) {
  const size_t first = version.find('.');
  if (first == std::string_view::npos) return version;
  return version.substr(0, version.find('.', first + 1));
}

}  // namespace

v1::UcxAddress Handshake::Signed(std::string_view side, const std::string& address) const {
  v1::UcxAddress out;
  out.set_address(address);
  out.set_signature(Sign(secret, {side, client_nonce, server_nonce, address}));
  return out;
}

absl::Status Handshake::Check(std::string_view side, const v1::UcxAddress& address) const {
  if (!secret.empty() && address.address().size() <= kAddressBytesMax &&
      IsSigned(secret, {side, client_nonce, server_nonce, address.address()},
               address.signature())) {
    return absl::OkStatus();
  }
  return Unavailable("the peer's UCX address is not signed with the secret of this session");
}

absl::Status CheckSameUcx(std::string_view version) {
  const std::string ours = UcxVersion();
  if (MajorMinor(version) == MajorMinor(ours)) return absl::OkStatus();
  return Unavailable(absl::StrCat("the peer has ", ToAbsl(version), " and this process ", ours));
}

}  // namespace lorry::transfer::ucx
