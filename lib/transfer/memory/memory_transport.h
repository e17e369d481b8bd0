// Bulk transfer within one process, address "memory://<n>": the seam's smallest implementation, for
// tests of what is built above it. Goes through tickets, ranges and checksums like the others, on a
// thread of its own.
#pragma once

#include <memory>

#include "lib/transfer/server.h"
#include "lib/transfer/ticket.h"
#include "lib/transfer/transport.h"

namespace lorry::transfer {

std::unique_ptr<TransferServer> StartMemoryServer(ServerLimits limits, const TicketKeys& keys,
                                                  TransferHandler& handler);

std::unique_ptr<Transport> CreateMemoryTransport();

}  // namespace lorry::transfer
