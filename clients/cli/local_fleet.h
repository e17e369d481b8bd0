// Services on this machine, on free loopback ports: as `lorry up` runs them one adapter-store, one
// sync-orchestrator, one engine-proxy an engine; as `lorry attach` does the engine-proxies alone,
// for a store and an orchestrator that run elsewhere. Used on main's thread, which must be the only
// one when it is made (it blocks SIGINT, SIGTERM and SIGCHLD and reads them itself).
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "clients/cli/child.h"
#include "clients/cpp/client.h"
#include "lib/base/clock.h"
#include "lib/base/file_lock.h"

namespace lorry::cli {

struct LocalFleetOptions {
  std::string data_dir;
  std::string bin_dir;
  std::vector<std::string> engines;  // URLs
  std::string pool = "rollout";
  std::string base_model_config = {};  // these two as engine-proxy has them
  bool base_model_unchecked = false;
  std::vector<std::string> proxy_flags = {};  // more for every proxy; CheckProxyFlag took them
  bool keep_going = false;                    // start again what dies, with backoff
  bool until_stdin_ends = false;              // an end of standard input asks to stop
  // Where a store and an orchestrator run already; none: they are started.
  std::optional<client::ConnectOptions> services = {};
  int64_t ready_timeout_ms = 0;  // each service
};

// "http://127.0.0.1:30000" of itself, "127.0.0.1:30000" or "30000".
absl::StatusOr<std::string> EngineUrl(const std::string& text);
// "engine-30000" of an engine on loopback, "10-0-0-7-30000" of another: stable over restarts.
std::string MemberName(const std::string& engine_url);

// Refuses a flag that the fleet itself gives its proxies: "--member=x".
absl::Status CheckProxyFlag(const std::string& flag);

class LocalFleet {
 public:
  explicit LocalFleet(LocalFleetOptions options);
  ~LocalFleet();

  // Starts everything and waits until it serves. CANCELLED after a signal.
  absl::Status Start();
  // Waits for a signal, or for a death that nothing is to be done about; then ABORTED.
  absl::Status Run();
  // Proxies first, the store last, each asked and, past its deadline, killed.
  void Stop();

  // {"store", "orchestrator", "token_file", "engines": [{member, engine, door, admin}], "data_dir",
  // "pid"}
  nlohmann::json Addresses() const;
  // Waits at most this long for a signal or a child's end. True: somebody asks to stop.
  bool Wait(int64_t ms);

 private:
  struct Service {
    std::string name, binary, engine;
    std::unique_ptr<Child> child;
    nlohmann::json ready = nlohmann::json::object();  // its addresses, kept over restarts
    int deaths = 0;
    Tick started_at = 0;
    Tick start_again_at = 0;  // 0: it runs
  };
  std::string InRun(const std::string& file) const;
  absl::Status MakeToken();
  absl::Status FollowTheirToken();
  bool AsksForToken() const;
  client::ConnectOptions Services() const;
  absl::Status StartService(Service& service);
  absl::Status AwaitReady(Service& service);
  std::vector<std::string> ArgumentsOf(const Service& service) const;
  absl::Status HandleDeath(Service& service);
  std::string Bound(const Service& service, const char* what) const;

  const LocalFleetOptions options_;
  const SteadyClock clock_;
  int signal_fd_ = -1;
  FileLock lock_;
  std::string their_token_;  // that the services which run elsewhere are shown; empty: none
  bool asked_to_stop_ = false, stdin_ended_ = false, hung_up_ = false;
  size_t proxies_begin_ = 0;
  std::vector<Service> services_;  // store and orchestrator, unless they run elsewhere; proxies
};

}  // namespace lorry::cli
