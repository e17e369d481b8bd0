// The admin port: GET /metrics, /livez, /readyz, /configz and pages that a service adds, over plain
// HTTP.
//
// For probes and scrapers, on loopback or inside the pod's network; it changes nothing and shows no
// secrets. One thread serves all connections; page functions run on it and should answer within
// milliseconds.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/metrics/registry.h"

namespace lorry::metrics {

struct Page {
  int code = 200;
  std::string body;
  std::string content_type = "text/plain; charset=utf-8";
};

struct AdminOptions {
  std::string address = "127.0.0.1:0";  // port 0 takes a free one
  // Not OK: 503 with the message. Live: the process need not be restarted. Ready: it serves now.
  std::function<absl::Status()> live = [] { return absl::OkStatus(); };
  std::function<absl::Status()> ready = [] { return absl::OkStatus(); };
  std::function<std::string()> config_json = [] { return std::string("{}"); };
  std::map<std::string, std::function<Page()>> pages = {};  // by path: "/statusz"
};

class AdminServer {
 public:
  // `registry` and whatever the functions use outlive the server. UNAVAILABLE LISTEN_FAILED when
  // the address is taken.
  static absl::StatusOr<std::unique_ptr<AdminServer>> Start(AdminOptions options,
                                                            Registry& registry);
  virtual ~AdminServer() = default;  // stops, joins
  virtual int port() const = 0;
  virtual std::string address() const = 0;  // host:port that a client on this machine dials
};

}  // namespace lorry::metrics
