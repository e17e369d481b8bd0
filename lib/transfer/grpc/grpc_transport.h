// Bulk transfer as gRPC streams (lorry.transfer.v1): for Python publishers and where UCX does not
// reach. Chunks of at most 1 MiB, one checksum each; flow control is HTTP/2's.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "lib/rpc/gate.h"
#include "lib/transfer/grpc/channels.h"
#include "lib/transfer/server.h"
#include "lib/transfer/ticket.h"
#include "lib/transfer/transport.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace lorry::transfer {

// A service of bulk transfer, to be registered on any grpc::Server beside others (it uses the
// callback API). Before that server's Shutdown call `Close`, or Shutdown waits for the streams' own
// ends.
class GrpcTransferService {
 public:
  virtual ~GrpcTransferService() = default;  // after the server's Shutdown and Wait
  virtual grpc::Service* service() = 0;
  virtual void Close() = 0;  // ends every stream with UNAVAILABLE; new ones too
  virtual std::map<std::string, TransportStats> stats() const = 0;  // by transport
};

// `gate`, `keys` and `handler` outlive the service.
std::unique_ptr<GrpcTransferService> CreateGrpcTransferService(ServerLimits limits, rpc::Gate& gate,
                                                               const TicketKeys& keys,
                                                               TransferHandler& handler);

// Without `channels` it has its own, insecure, for loopback. `name` is also the scheme of the
// addresses that it dials: "relay" for those of relays, which are shown a ticket and nothing else.
std::unique_ptr<Transport> CreateGrpcTransport(std::shared_ptr<Channels> channels = nullptr,
                                               std::string name = "grpc");

}  // namespace lorry::transfer
