// Under which address other machines reach a port of this one. main's thread only.
#pragma once

#include <string>

#include "lib/base/host_port.h"

namespace lorry::program {

// `listens.host`, unless that stands for every address of this machine: then the address of its
// first network interface that is up and not loopback, IPv4 before IPv6 where both are listened
// on. Loopback is left for a machine without any such interface, which nobody else can reach.
std::string ReachableHost(const HostPort& listens);

}  // namespace lorry::program
