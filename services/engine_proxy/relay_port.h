// Where other proxies read what this one fetches: the relay (driver/relay.h) behind a port of its
// own, at which a ticket is all that is asked for. main's thread only.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "lib/base/host_port.h"
#include "lib/metrics/registry.h"
#include "lib/rpc/gate.h"
#include "lib/rpc/server.h"
#include "lib/transfer/grpc/grpc_transport.h"
#include "services/engine_proxy/driver/relay.h"

namespace lorry::proxy {

class RelayPort {
 public:
  // By --relay-listen; null where it names nothing. `advertised`: what others dial to reach a port
  // that listens there; `tls_name`: by which they check its certificate, empty: the host.
  static absl::StatusOr<std::unique_ptr<RelayPort>> Open(
      Relay::Join join, const std::function<std::string(const HostPort&)>& advertised,
      const std::string& tls_name);
  ~RelayPort();  // after the fetcher; whoever still reads is sent elsewhere

  Relay& relay() { return relay_; }
  const std::string& address() const { return address_; }
  // Counts the image bytes that others read here; the registry is asked no more once this goes.
  void Watch(metrics::Registry& registry);

 private:
  explicit RelayPort(Relay::Join join) : relay_(std::move(join), clock_) {}
  absl::Status Listen(const std::function<std::string(const HostPort&)>& advertised,
                      const std::string& tls_name);

  const SteadyClock clock_;
  Relay relay_;
  std::string address_;
  uint64_t counted_ = 0;  // of the bytes sent; the scraper's thread
  std::unique_ptr<rpc::Access> access_;
  std::unique_ptr<rpc::Gate> gate_;
  std::unique_ptr<transfer::GrpcTransferService> service_;
  std::unique_ptr<rpc::Server> server_;
};

// Whether this proxy relays, and so reads from relays.
bool Relays();
// A channel to "[name@]host:port" that shows nothing of this process but its certificate, if it has
// one; null, with a warning, where none can be made.
std::shared_ptr<grpc::Channel> DialRelay(const std::string& address);

}  // namespace lorry::proxy
