// Bulk transfer over UCX: two-sided active messages, rendezvous straight into the destination's
// mapping, the receiver pacing. A gRPC stream (lorry.transfer.v1.UcxService) sets each session up:
// it carries the ticket, then both sides' UCX addresses, and its end is the session's end. So no
// UCX socket listens for sessions, and a peer's death is seen at once.
//
// Each object has one thread that owns all of its UCX objects; everything else posts to it. In a
// process with CUDA or Python there must be no second UCX. Not usable across fork(): create after
// forking.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "lib/rpc/gate.h"
#include "lib/transfer/grpc/channels.h"
#include "lib/transfer/grpc/grpc_transport.h"
#include "lib/transfer/server.h"
#include "lib/transfer/ticket.h"
#include "lib/transfer/transport.h"

namespace lorry::transfer {

// What may carry a session. Never both: UCX would split one message over them.
enum class UcxLane : uint8_t { kSharedMemory, kNetwork };
// "ucx-shm", "ucx-net": the transport's name in logs and metrics.
std::string_view NameOf(UcxLane lane);

// What UCX may use besides shared memory, which nobody but the same user on the same host can
// touch. A network lane has no protection of its own: whoever reaches a declared device's address
// can write the process's memory, and nothing on it is encrypted. So each is declared by an
// operator who trusts the network behind it.
struct UcxDevices {
  std::string tcp = {};   // as UCX names them, "eth1,eth2"; empty: none
  std::string rdma = {};  // "mlx5_0:1"
  bool empty() const { return tcp.empty() && rdma.empty(); }
};

// Serves lorry.transfer.v1.UcxService: over shared memory unless that is off, and over `devices`
// where there are any.
// `gate`, `keys` and `handler` outlive the service. UNAVAILABLE when UCX finds no such lane here.
struct UcxServiceOptions {
  bool shared_memory = true;
  UcxDevices devices = {};
  ServerLimits limits = {};
};
absl::StatusOr<std::unique_ptr<GrpcTransferService>> CreateUcxService(UcxServiceOptions options,
                                                                      rpc::Gate& gate,
                                                                      const TicketKeys& keys,
                                                                      TransferHandler& handler);

// Dials "grpc://host:port" addresses, as the gRPC transport does. `devices` are for kNetwork.
absl::StatusOr<std::unique_ptr<Transport>> CreateUcxTransport(UcxLane lane,
                                                              std::shared_ptr<Channels> channels,
                                                              UcxDevices devices = {});

// "UCX 1.13.1". The two sides agree in major and minor, or UCX is not used.
std::string UcxVersion();

}  // namespace lorry::transfer
