// Channels to other services: keepalive, credentials, retries and deadlines in one place.
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/base/clock.h"

namespace lorry::rpc {

struct ClientTls {
  std::string ca, cert,
      key;  // PEM files; `ca` alone checks the server, all three are mTLS; empty = plaintext
  // The name that the server's certificate must have; empty: the host of the target.
  std::string server_name = {};
  int reread_s = 60;  // how often the files are looked at, so that renewed ones need no restart
  bool empty() const { return ca.empty() && cert.empty() && key.empty(); }
};

struct ChannelOptions {
  std::string target;  // host:port, unix:path, dns:///name:port
  ClientTls tls = {};
  // Sent as `authorization: Bearer ...`: `token` itself, or what `token_file` holds, which is read
  // again when it changes; while it is gone, empty or wrong, what it held before is shown.
  std::string token = {};
  std::string token_file = {};
  // Idempotent calls, "lorry.store.v1.StoreService/GetVersion" or "lorry.store.v1.StoreService" for
  // all of its calls: repeated on UNAVAILABLE, at most 4 times with backoff, within their deadline
  // and a retry budget.
  std::vector<std::string> idempotent = {};
  // A TCP connection of its own, for streams that must not share a window.
  bool own_connection = false;
  int receive_max_bytes = 4 << 20;
  int64_t keepalive_interval_ms = 5'000;
  int64_t keepalive_timeout_ms = 5'000;
};

// Whether what is sent to this address, host:port or unix:path, stays on this machine.
bool IsLoopback(const std::string& address);
// A token that leaves this machine unencrypted can be read by whoever carries it.
bool SendsTokenInClear(const ChannelOptions& options);

// `token`, or else what `token_file` holds, without the white space around it; empty: neither is
// given. INVALID_ARGUMENT, which never quotes it, when the file cannot be read or is more than one
// word of ASCII characters.
absl::StatusOr<std::string> TokenToShow(const std::string& token, const std::string& token_file);

// INVALID_ARGUMENT when a named file cannot be read, or as TokenToShow. Connects on first use.
// Warns in the log where a token goes in clear.
absl::StatusOr<std::shared_ptr<grpc::Channel>> MakeChannel(const ChannelOptions& options);

// Every call has a deadline.
void SetDeadlineIn(grpc::ClientContext& context, int64_t ms);
// What is left until `deadline` (SteadyClock); already past gives a call that fails at once.
void SetDeadlineAt(grpc::ClientContext& context, Tick deadline);

}  // namespace lorry::rpc
