// The whole adapter-store in one object: what main runs and integration tests start in process.
//
// Start opens the data directory (one process at a time), takes up open uploads, listens. Stop, or
// the destructor, drains: no new calls, running ones end, checks finish, everything is closed.
// Used from one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/rpc/server.h"
#include "lib/transfer/ucx/ucx_transport.h"
#include "services/adapter_store/catalog/catalog.h"
#include "services/adapter_store/images/fan_out.h"

namespace lorry::store {

struct StoreOptions {
  std::string data_dir;                      // created if its parent exists
  rpc::ServerOptions listen;                 // gRPC: control and transfers
  std::string tokens_file;                   // empty: everybody on loopback
  std::string admin_listen = "127.0.0.1:0";  // metrics and probes
  bool ucx = true;                           // transfers over shared memory
  transfer::UcxDevices ucx_devices;          // and over these networks
  // The host that peers dial for transfers. Empty: the address under which each of them reached
  // this store.
  std::string advertise_host;
  uint64_t disk_free_min = uint64_t{256} << 20;  // left to the catalogue and to others
  CatalogOptions catalog;
  FanOutOptions fan_out;  // of images among proxies that relay them
  int ahead_readers = 8;  // of each upload, while it comes
  int64_t sweep_interval_ms = 1'000;
  std::string version = "unknown";  // of this program
  // For /configz.
  std::function<std::string()> config_json = [] { return std::string("{}"); };
  // Told, on any thread, why the process must end: nothing can be written before it reads again.
  std::function<void(const absl::Status&)> on_fatal = [](const absl::Status&) {};
};

class StoreServer {
 public:
  static absl::StatusOr<std::unique_ptr<StoreServer>> Start(StoreOptions options);
  virtual ~StoreServer() = default;  // Stop()

  // NOT OK when a handler did not return in time; the process should then leave by _exit.
  virtual absl::Status Stop() = 0;
  virtual std::string grpc_address() const = 0;  // host:port on this machine
  virtual int grpc_port() const = 0;
  virtual std::string admin_address() const = 0;
  virtual std::vector<std::string> transfer_addresses() const = 0;  // as advertised, best first
};

}  // namespace lorry::store
