// Bulk transfer over UCX: two-sided active messages, rendezvous straight into the destination's
// mapping, the receiver pacing. Shared memory, TCP or RDMA as UCX finds them. ADR 0001 says why
// peers' errors are on.
//
// Each object has one thread that owns one UCX worker; everything else posts to it. In a process
// with CUDA or Python there must be no second UCX. Not usable across fork(): create after forking.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "lib/transfer/server.h"
#include "lib/transfer/ticket.h"
#include "lib/transfer/transport.h"

namespace lorry::transfer {

struct UcxServerOptions {
  // An address of this host, not 0.0.0.0: it is advertised as it is.
  std::string host = "127.0.0.1";
  int port = 0;  // 0: any free one
  ServerLimits limits;
};

// `keys` and `handler` outlive the server. UNAVAILABLE when the port is taken or UCX finds no
// transport.
absl::StatusOr<std::unique_ptr<TransferServer>> StartUcxServer(UcxServerOptions options,
                                                               const TicketKeys& keys,
                                                               TransferHandler& handler);

absl::StatusOr<std::unique_ptr<Transport>> CreateUcxTransport();

// "UCX 1.13.1": what the two sides should agree on in major and minor (the caller compares).
std::string UcxVersion();

}  // namespace lorry::transfer
