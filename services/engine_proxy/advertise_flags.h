// The flags of where others reach this program. main's thread only.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "lib/base/host_port.h"

namespace lorry::proxy {

absl::Status CheckAdvertiseFlags();

// host:port that others dial to reach what listens there.
std::string Advertised(const HostPort& listens);
std::string AdvertisedDoor(const HostPort& listens);

}  // namespace lorry::proxy
