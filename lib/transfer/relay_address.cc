#include "lib/transfer/relay_address.h"

#include "absl/strings/str_cat.h"
#include "lib/base/error.h"
#include "lib/base/host_port.h"
#include "lib/base/strings.h"
#include "lib/transfer/transport.h"

namespace lorry::transfer {

std::string RelayAddress::ToString() const {
  return absl::StrCat(ToAbsl(kRelayScheme), "://", tls_name, tls_name.empty() ? "" : "@",
                      host_port);
}

absl::StatusOr<RelayAddress> ParseRelayAddress(std::string_view text) {
  if (text.size() > kRelayAddressBytesMax || SchemeOf(text) != kRelayScheme) {
    return Error(absl::StatusCode::kInvalidArgument, "",
                 absl::StrCat("a relay's address is relay://host:port, of at most ",
                              kRelayAddressBytesMax, " bytes"));
  }
  RelayAddress address;
  std::string_view rest = HostPortOf(text);
  if (const size_t at = rest.find('@'); at != std::string_view::npos) {
    address.tls_name = rest.substr(0, at);
    rest = rest.substr(at + 1);
  }
  LORRY_RETURN_IF_ERROR(ParseHostPort(rest, "a relay's address").status());
  address.host_port = rest;
  return address;
}

}  // namespace lorry::transfer
