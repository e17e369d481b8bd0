// A port of its own for services of bulk transfer, on loopback and open to everybody. Stores and
// relays serve them on a server of lib/rpc.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/transfer/grpc/grpc_transport.h"
#include "lib/transfer/server.h"

namespace lorry::transfer {

// Its counters are those of `transport`.
absl::StatusOr<std::unique_ptr<TransferServer>> Listen(
    std::vector<std::unique_ptr<GrpcTransferService>> services, std::string transport);

}  // namespace lorry::transfer
