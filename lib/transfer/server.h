// The serving side of the seam: a store or a relay implements TransferHandler once; each
// transport's server checks tickets and ranges, and moves bytes between its peers and what the
// handler opened.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/transfer/arrivals.h"
#include "lib/transfer/checksum.h"
#include "lib/transfer/put_target.h"
#include "lib/transfer/ticket.h"
#include "lib/transfer/transport.h"

namespace lorry::transfer {

// An image that may be read.
struct GetSource {
  std::shared_ptr<const void> owner;  // keeps `bytes` mapped while any connection may read them
  std::span<const std::byte> bytes;   // the whole image
  std::vector<Checksum> leaves;  // its LeafCount leaves, or empty: then hashed as they are sent
  // Where the image is still coming: what is there by now. Null: all of it. Served by gRPC alone.
  std::shared_ptr<const ComingBytes> arrivals = nullptr;
};

// A session of the serving side that failed: it was refused, or ended for what its peer sent or no
// longer sent. A peer that has left is none: who reads ahead leaves as soon as there is a version.
struct FailedSession {
  std::string_view transport;  // "grpc"
  std::string_view peer;       // as gRPC writes it, "ipv4:10.0.0.1:4711"
  std::string_view object;     // which its ticket opens; empty where it has shown none
  absl::Status why;
};

// Opens what a verified ticket names. Calls come from transports' threads, several at once, and
// must not block: `done` is called exactly once, from any thread, at once or later. A status is
// passed to the peer as it is (NOT_FOUND for what has gone, FAILED_PRECONDITION RUN_FENCED, ...).
// Outlives every server that has it.
class TransferHandler {
 public:
  using GetOpened = std::function<void(absl::StatusOr<GetSource>)>;
  using PutOpened = std::function<void(absl::StatusOr<std::shared_ptr<PutTarget>>)>;

  virtual ~TransferHandler() = default;
  virtual void OpenGet(const TicketClaims& claims, GetOpened done) = 0;
  virtual void OpenPut(const TicketClaims& claims, PutOpened done) = 0;
  // Told before the peer hears of it; calls nobody back.
  virtual void OnFailed(const FailedSession&) {}
};

struct ServerLimits {
  // Connections at a time. 256: a store's fan-out is tens of proxies; each connection costs some
  // 100 KB.
  int sessions_max = 256;
  // Connections that have shown no ticket yet, over all, and from one address. Beside sessions_max:
  // whoever has no ticket cannot keep out those who have one. 64: the ranks of a large job connect
  // at once, from few hosts.
  int ticketless_max = 256;
  int ticketless_per_host_max = 64;
  // How long they may take. A ticket comes in the first message.
  Tick ticket_deadline_ms = 2'000;
  // Ranges being received at a time over all connections; the others wait at their senders. 32 × 8
  // MiB keeps two cores busy and bounds what a crash of many senders leaves behind.
  int receiving_max = 32;
  // A connection on which nothing happens for so long is closed: stopped peers are not noticed
  // otherwise.
  Tick idle_deadline_ms = 30'000;
};

// A listening server of one transport. Start-up is the factory's (each transport has one); the
// destructor closes every connection and returns when no byte of any source or target is in use any
// more.
class TransferServer {
 public:
  virtual ~TransferServer() = default;
  // What peers are to dial, "grpc://127.0.0.1:4711".
  virtual std::string address() const = 0;
  virtual TransportStats stats() const = 0;
};

}  // namespace lorry::transfer
