// How Lorry sets UCX up. The environment (UCX_...) wins over every value here.
#pragma once

#include <ucp/api/ucp.h>

namespace lorry::transfer::ucx {

// The caller releases `config`.
ucs_status_t ReadConfig(ucp_config_t** config);

}  // namespace lorry::transfer::ucx
