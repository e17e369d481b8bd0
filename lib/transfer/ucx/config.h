// How Lorry sets UCX up: which lanes there are, and what was measured to be good for them.
#pragma once

#include <ucp/api/ucp.h>

#include "lib/transfer/ucx/ucx_transport.h"

namespace lorry::transfer::ucx {

// The caller releases `config`. The transports are those of `lane` and no others, whatever UCX_TLS and
// UCX_NET_DEVICES say in the environment: a lane is a way into the process's memory, and those are
// declared by flags. Every other UCX_... variable wins over the values here.
ucs_status_t ReadConfig(UcxLane lane, const UcxDevices& devices, ucp_config_t** config);

}  // namespace lorry::transfer::ucx
