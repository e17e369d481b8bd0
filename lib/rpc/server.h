// One listening gRPC server: health, reflection, keepalive, limits, credentials, and a Shutdown
// that always returns.
//
//   auto server = rpc::Server::Start({.address = "127.0.0.1:0"}, gate, {&store_service});
//   server->SetServing(true);            // after restore; until then health says NOT_SERVING
//   server->Shutdown();                  // on SIGTERM, from main; never from a gRPC thread
//
// Owned by main, used from main's thread. Services, gate and access outlive it.
#pragma once

#include <grpcpp/server.h>

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/rpc/gate.h"

namespace lorry::rpc {

// PEM files; all empty = plaintext. With `client_ca` clients must show a certificate signed by it
// (mTLS).
struct ServerTls {
  std::string cert, key, client_ca;
  int reread_s = 60;  // how often the files are looked at, so that renewed ones need no restart
  bool empty() const { return cert.empty() && key.empty() && client_ca.empty(); }
};

struct ServerOptions {
  std::string address = "127.0.0.1:0";  // host:port or unix:path; port 0 takes a free one
  ServerTls tls = {};
  // Listening elsewhere than on loopback with open access or with tokens in plaintext is refused
  // (FAILED_PRECONDITION INSECURE_LISTEN) unless this is set; then it is logged as a warning.
  bool allow_insecure = false;
  // Every call here has to show a ticket of its own (lib/transfer): TLS alone is enough elsewhere.
  bool by_ticket = false;
  bool reflection = true;
  // Control messages stay below gRPC's own default; bulk goes through lib/transfer.
  int receive_max_bytes = 4 << 20;
  // Of a call's headers: a token, a deadline and a trace have less than 2 KiB.
  int headers_max_bytes = 16 << 10;
  int64_t memory_max_bytes = 256 << 20;  // gRPC's buffers for all connections together
  int streams_per_connection_max = 1024;
  // A peer that answers no ping for interval + timeout is gone (measured:
  // docs/adr/0003-grpc-streams.md).
  int64_t keepalive_interval_ms = 5'000;
  int64_t keepalive_timeout_ms = 5'000;
  // A stream whose peer takes no message for this long is cancelled: its process lives but does not
  // read.
  int64_t stream_stall_max_ms = 10'000;
  int64_t shutdown_max_ms = 1'800;
  // Of that, for replies of calls that have ended and are not sent yet. Whoever watches the server's
  // health holds it for as long.
  int64_t reply_grace_ms = 200;
};

class Doorkeeper;  // internal

class Server {
 public:
  static absl::StatusOr<std::unique_ptr<Server>> Start(ServerOptions options, Gate& gate,
                                                       std::vector<grpc::Service*> services);
  ~Server();  // Shutdown()

  int port() const { return port_; }
  std::string address() const;  // what a client on this machine dials
  void SetServing(bool serving);

  // NOT_SERVING; no new calls; streams end with UNAVAILABLE SHUTTING_DOWN; calls finish or are
  // cancelled; gRPC stops. Within shutdown_max_ms, always: DEADLINE_EXCEEDED names handlers that
  // still run, and the caller should then leave by _exit, because their threads are not coming
  // back.
  absl::Status Shutdown();

 private:
  Server(ServerOptions options, Gate& gate, std::shared_ptr<Doorkeeper> doorkeeper)
      : options_(std::move(options)), gate_(gate), doorkeeper_(std::move(doorkeeper)) {}
  void WatchStreams();

  const ServerOptions options_;
  Gate& gate_;                                    // outlives the server
  const std::shared_ptr<Doorkeeper> doorkeeper_;  // shared with gRPC
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;
  Mutex mutex_;
  CondVar wake_;
  bool stopping_ LORRY_GUARDED_BY(mutex_) = false;
  std::thread watcher_;  // cancels stalled streams
};

}  // namespace lorry::rpc
