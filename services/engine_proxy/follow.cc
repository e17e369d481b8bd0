#include "services/engine_proxy/follow.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "lib/base/error.h"
#include "lib/base/host_port.h"
#include "lib/metrics/admin_server.h"
#include "lib/program/program.h"
#include "lib/rpc/call_metrics.h"
#include "lib/rpc/credential_metrics.h"
#include "services/engine_proxy/follower/agent.h"
#include "services/engine_proxy/image_flags.h"
#include "services/engine_proxy/rpc/fetch_metrics.h"
#include "services/engine_proxy/rpc/follower_service.h"
#include "services/engine_proxy/rpc/store_client.h"

ABSL_DECLARE_FLAG(bool, image_dir_shared);
ABSL_DECLARE_FLAG(std::string, member);
ABSL_DECLARE_FLAG(std::string, store);

ABSL_FLAG(bool, follow, false,
          "keep the images of --member on one more node of its engine, under the same path: no "
          "engine, door or orchestrator; named there by --followers");
ABSL_FLAG(std::vector<std::string>, followers, {},
          "host:port, separated by commas, of an `engine-proxy --follow` on each other node of an "
          "engine that runs on several: a version is loaded once all have it");

namespace lorry::proxy {
namespace {

absl::Status CheckFlags() {
  for (const auto& [flag, value] : {std::pair{"--store", absl::GetFlag(FLAGS_store)},
                                    {"--member", absl::GetFlag(FLAGS_member)}}) {
    if (value.empty())
      return Error(absl::StatusCode::kInvalidArgument, "",
                   absl::StrCat(flag, " is missing; see --help"));
  }
  if (!absl::GetFlag(FLAGS_followers).empty())
    return Error(absl::StatusCode::kInvalidArgument, "",
                 "--follow and --followers exclude each other: a follower has none of its own");
  return CheckName("--member", absl::GetFlag(FLAGS_member));
}

}  // namespace

uint64_t NodesServed() {
  if (absl::GetFlag(FLAGS_image_dir_shared)) return 0;
  return 1 + absl::GetFlag(FLAGS_followers).size();
}

bool IsFollower() { return absl::GetFlag(FLAGS_follow); }

absl::StatusOr<std::vector<Follower>> FollowerFlags(const std::string& member) {
  std::vector<Follower> followers;
  for (const std::string& address : absl::GetFlag(FLAGS_followers)) {
    LORRY_RETURN_IF_ERROR(ParseHostPort(address, "--followers").status());
    LORRY_ASSIGN_OR_RETURN(std::shared_ptr<rpc::FreshChannel> channel, program::Dial(address, {}));
    followers.push_back({address, MakeAskFollower(std::move(channel), member)});
  }
  return followers;
}

absl::Status RunFollower(runtime::Signals& signals) {
  LORRY_RETURN_IF_ERROR(CheckFlags());
  const std::string member = absl::GetFlag(FLAGS_member);
  metrics::Registry registry({.service = "engine-proxy", .version = program::kVersion});
  FetchMetrics metrics(registry);
  rpc::WatchCredentials(registry, program::ServerFlags().tls, program::DialledCa(),
                        program::TokensFile());
  LORRY_ASSIGN_OR_RETURN(
      const std::shared_ptr<rpc::FreshChannel> channel,
      program::Dial(absl::GetFlag(FLAGS_store), {"lorry.store.v1.StoreService/OpenFetch"}));
  StoreClient store(channel);
  const std::unique_ptr<transfer::TransportSet> transports = MakeTransports();
  const auto manifest_of = [&](const VersionKey& key) { return store.OpenFetch(key); };
  Agent agent(
      [&](const JournalId& journal) { return OpenShelf(member, journal); }, *transports,
      manifest_of,
      [&](const std::string& transport, double seconds) { metrics.OnFetched(transport, seconds); },
      [&](ImageShelf& shelf) { return OpenLastImages(shelf, manifest_of); });
  registry.OnScrape([&] { metrics.Show(agent.sources(), agent.fetched_bytes()); });
  LORRY_ASSIGN_OR_RETURN(const std::unique_ptr<rpc::Access> access, program::AccessFlags());
  rpc::Gate gate(*access, {.on_call = rpc::CallMetrics(registry)});
  FollowerService service(gate, member, agent);
  LORRY_ASSIGN_OR_RETURN(const std::unique_ptr<rpc::Server> server,
                         rpc::Server::Start(program::ServerFlags(), gate, {&service}));
  LORRY_ASSIGN_OR_RETURN(const std::unique_ptr<metrics::AdminServer> admin,
                         metrics::AdminServer::Start({.address = absl::GetFlag(FLAGS_admin_listen),
                                                      .ready = [] { return absl::OkStatus(); },
                                                      .config_json = program::FlagsJson},
                                                     registry));
  server->SetServing(true);
  LORRY_RETURN_IF_ERROR(program::Ready({{"grpc", server->address()}, {"admin", admin->address()}}));
  signals.Wait();
  spdlog::info("draining");
  program::LeaveUnless(server->Shutdown());
  return absl::OkStatus();
}

}  // namespace lorry::proxy
