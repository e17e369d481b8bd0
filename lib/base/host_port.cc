#include "lib/base/host_port.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "lib/base/error.h"
#include "lib/base/strings.h"

namespace lorry {

std::string HostPort::ToString() const {
  const bool is_ipv6 = host.find(':') != std::string::npos;
  return is_ipv6 ? absl::StrCat("[", host, "]:", port) : absl::StrCat(host, ":", port);
}

bool HostPort::IsWildcard() const { return host == "0.0.0.0" || host == "::"; }

absl::StatusOr<HostPort> ParseHostPort(std::string_view text, std::string_view what) {
  const size_t colon = text.rfind(':');
  std::string_view host = text.substr(0, colon);
  const bool has_brackets = host.starts_with('[') && host.ends_with(']');
  if (has_brackets) host = host.substr(1, host.size() - 2);
  // Without brackets nobody can tell the last group of an IPv6 address from a port.
  const bool is_ambiguous = !has_brackets && host.find(':') != std::string_view::npos;
  uint32_t port = 0;
  if (colon == std::string_view::npos || host.empty() || is_ambiguous ||
      !absl::SimpleAtoi(ToAbsl(text.substr(colon + 1)), &port) || port > 65'535) {
    return Error(absl::StatusCode::kInvalidArgument, "",
                 absl::StrCat(ToAbsl(what), " is \"", ToAbsl(text),
                              "\"; write it as host:port, for instance 127.0.0.1:7400 or "
                              "[::1]:7400"));
  }
  return HostPort{std::string(host), static_cast<uint16_t>(port)};
}

}  // namespace lorry
