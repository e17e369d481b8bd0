// sync-orchestrator: wires store link, machine, RPC and metrics. Nothing is decided here.
#include <spdlog/spdlog.h>

#include <ctime>

#include "absl/flags/flag.h"
#include "lib/base/error.h"
#include "lib/fleet/held.h"
#include "lib/kv/sqlite/sqlite_store.h"
#include "lib/metrics/admin_server.h"
#include "lib/program/program.h"
#include "lib/rpc/call_metrics.h"
#include "lib/rpc/credential_metrics.h"
#include "services/sync_orchestrator/driver/orchestrator.h"
#include "services/sync_orchestrator/rpc/gauges.h"
#include "services/sync_orchestrator/rpc/readiness.h"
#include "services/sync_orchestrator/rpc/store_link.h"
#include "services/sync_orchestrator/rpc/sync_service.h"

ABSL_FLAG(std::string, store, "", "host:port of the adapter-store");
ABSL_FLAG(std::string, cluster, "lorry",
          "this fleet's name: holds at the store are kept under it, AdoptFleet repeats it");

namespace lorry::sync {
namespace {

// /readyz waits at most this long for the machine; whoever asks waits a few seconds.
constexpr int64_t kReadyDeadlineMs = 1'000;

absl::Status Run(runtime::Signals& signals) {
  if (absl::GetFlag(FLAGS_store).empty()) {
    return Error(absl::StatusCode::kInvalidArgument, "",
                 "--store is missing: host:port of the adapter-store");
  }
  const SteadyClock clock;
  LORRY_ASSIGN_OR_RETURN(const std::string data_dir, program::DataDir());
  LORRY_ASSIGN_OR_RETURN(const std::unique_ptr<kv::Store> kv,
                         kv::OpenSqliteStore({.path = data_dir + "/orchestrator.db"}));

  metrics::Registry registry({.service = "sync-orchestrator", .version = program::kVersion});
  absl::Status fatal;
  LORRY_ASSIGN_OR_RETURN(
      const std::unique_ptr<Orchestrator> orchestrator,
      Orchestrator::Create(
          *kv, clock,
          {.machine = {.new_incarnation = fleet::NewIncarnation(std::time(nullptr))},
           .on_fatal = [&](const absl::Status& why) {
             fatal = why;
             signals.RequestStop();
           }}));
  ServingMetrics serving(registry);
  SyncObserver observer(PhaseMetrics(registry, serving));

  LORRY_ASSIGN_OR_RETURN(
      const std::shared_ptr<rpc::FreshChannel> store,
      program::Dial(absl::GetFlag(FLAGS_store), {"lorry.store.v1.StoreService/SetHolds"}));
  StoreLink store_link(store, "orchestrator:" + absl::GetFlag(FLAGS_cluster), *orchestrator);
  orchestrator->Connect(store_link, observer);

  LORRY_ASSIGN_OR_RETURN(const std::unique_ptr<rpc::Access> access, program::AccessFlags());
  rpc::Gate gate(*access, {.on_call = rpc::CallMetrics(registry)});
  SyncService service(gate, *orchestrator, store_link, clock, absl::GetFlag(FLAGS_cluster),
                      program::kVersion);
  Gauges gauges(registry, *orchestrator, store_link, serving, clock);
  rpc::WatchCredentials(registry, program::ServerFlags().tls, program::DialledCa(),
                        program::TokensFile());
  LORRY_ASSIGN_OR_RETURN(
      const std::unique_ptr<metrics::AdminServer> admin,
      metrics::AdminServer::Start(
          {.address = absl::GetFlag(FLAGS_admin_listen),
           .ready =
               [&] { return IsReady(*orchestrator, store_link, clock.Now() + kReadyDeadlineMs); },
           .config_json = program::FlagsJson},
          registry));
  LORRY_ASSIGN_OR_RETURN(const std::unique_ptr<rpc::Server> server,
                         rpc::Server::Start(program::ServerFlags(), gate, {&service}));
  orchestrator->Start();
  store_link.Start();
  server->SetServing(true);
  const absl::Status ready =
      program::Ready({{"grpc", server->address()}, {"admin", admin->address()}});

  if (ready.ok()) signals.Wait();
  // Also where nobody could be told: the driver runs, and calls what is destroyed before it.
  spdlog::info("stopping");
  const absl::Status stopped = server->Shutdown();
  store_link.Stop();
  orchestrator->Stop();
  const absl::Status& ended = ready.ok() ? fatal : ready;
  program::LeaveUnless(stopped, ended);
  return ended;
}

}  // namespace
}  // namespace lorry::sync

int main(int argc, char** argv) {
  return lorry::program::Main(argc, argv, "sync-orchestrator",
                              "Decides which engine serves which adapter version.",
                              lorry::sync::Run);
}
