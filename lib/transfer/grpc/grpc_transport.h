// Bulk transfer as gRPC streams (lorry.transfer.v1): for Python publishers and where UCX does not
// reach. Chunks of at most 1 MiB, one checksum each; flow control is HTTP/2's.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "lib/transfer/server.h"
#include "lib/transfer/ticket.h"
#include "lib/transfer/transport.h"

namespace grpc {
class Channel;
class Service;
}  // namespace grpc

namespace lorry::transfer {

// The service, to be registered on any grpc::Server beside others (it uses the callback API).
// Before that server's Shutdown call `Close`, or Shutdown waits for the streams' own ends.
class GrpcTransferService {
 public:
  virtual ~GrpcTransferService() = default;  // after the server's Shutdown and Wait
  virtual grpc::Service* service() = 0;
  virtual void Close() = 0;  // ends every stream with UNAVAILABLE; new ones too
  virtual TransportStats stats() const = 0;
};

std::unique_ptr<GrpcTransferService> CreateGrpcTransferService(ServerLimits limits,
                                                               const TicketKeys& keys,
                                                               TransferHandler& handler);

// A server of its own, for tests and relays; `port` 0: any free one.
absl::StatusOr<std::unique_ptr<TransferServer>> StartGrpcServer(const std::string& host, int port,
                                                                ServerLimits limits,
                                                                const TicketKeys& keys,
                                                                TransferHandler& handler);

// `dial` makes a channel for "host:port" (credentials are its business); empty: insecure, for
// loopback.
std::unique_ptr<Transport> CreateGrpcTransport(
    std::function<std::shared_ptr<grpc::Channel>(const std::string& host_port)> dial = {});

}  // namespace lorry::transfer
