#include "services/engine_proxy/advertise_flags.h"

#include <algorithm>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "lib/base/error.h"
#include "lib/program/reachable.h"

ABSL_FLAG(std::string, advertise_host, "",
          "host under which others reach the door and the gRPC services; default: where they "
          "listen, and this machine's address where they listen on all of its addresses");
ABSL_FLAG(std::string, door_advertise, "",
          "host:port of the door alone, where it is reached through a port that is not its own");
namespace lorry::proxy {

absl::Status CheckAdvertiseFlags() {
  const std::string host = absl::GetFlag(FLAGS_advertise_host);
  const bool has_brackets = host.starts_with('[') && host.ends_with(']');
  const bool has_port = std::ranges::count(host, ':') == 1;  // an IPv6 address has at least two
  if (!has_brackets && (has_port || host.find_first_of("[]/") != std::string::npos)) {
    return Error(absl::StatusCode::kInvalidArgument, "",
                 absl::StrCat("--advertise-host is \"", host,
                              "\"; write a name or an address, without a port"));
  }
  const std::string door = absl::GetFlag(FLAGS_door_advertise);
  return door.empty() ? absl::OkStatus() : ParseHostPort(door, "--door-advertise").status();
}

std::string Advertised(const HostPort& listens) {
  std::string host = absl::GetFlag(FLAGS_advertise_host);
  if (host.starts_with('[')) host = host.substr(1, host.size() - 2);
  return HostPort{host.empty() ? program::ReachableHost(listens) : host, listens.port}.ToString();
}

std::string AdvertisedDoor(const HostPort& listens) {
  const std::string door = absl::GetFlag(FLAGS_door_advertise);
  return door.empty() ? Advertised(listens) : door;
}

}  // namespace lorry::proxy
