// The flags of the programs that move images: which ways besides gRPC they may use.
#pragma once

#include "lib/transfer/ucx/ucx_transport.h"

namespace lorry::program {

bool UcxOn();                       // --ucx: shared memory within the host
transfer::UcxDevices UcxDevices();  // --ucx-tcp-devices, --ucx-rdma-devices
// Says in the log what declared devices mean.
void WarnOfOpenMemory(const transfer::UcxDevices& devices);

}  // namespace lorry::program
