// adapter-store: flags in, one StoreServer, drain on SIGTERM or once it cannot write any more.
#include <spdlog/spdlog.h>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lib/base/error.h"
#include "lib/program/program.h"
#include "lib/program/ucx_flags.h"
#include "services/adapter_store/server.h"

ABSL_FLAG(std::string, advertise_host, "",
          "host that peers dial for transfers; default: the address under which each of them "
          "reached this store");
ABSL_FLAG(uint64_t, quota_bytes, 0, "image bytes of all adapters together; 0: as many as fit");
ABSL_FLAG(uint64_t, adapter_quota_bytes, 0, "the same for an adapter whose policy sets no quota");
ABSL_FLAG(
    uint32_t, store_keep, lorry::store::CatalogOptions().store_keep,
    "the newest versions of an adapter that stay stored where its policy does not say; 0: all. "
    "What an alias or a holder names, or was published with keep, stays besides");
ABSL_FLAG(uint64_t, disk_free_min_bytes, uint64_t{256} << 20,
          "uploads are refused rather than leave less free");
ABSL_FLAG(int32_t, relay_width, lorry::store::FanOutOptions().width,
          "proxies that read an image from this store, and from each proxy that relays it, while "
          "many fetch it at once; 0: all read from the store");
ABSL_FLAG(
    int32_t, ahead_readers, lorry::store::StoreOptions().ahead_readers,
    "proxies that may read an image while its trainer still sends it; of those that relay, at "
    "most --relay-width; 0: none");
ABSL_FLAG(int64_t, sweep_interval_ms, 1'000, "how often idle uploads and garbage are looked for");
ABSL_FLAG(int64_t, ticket_life_ms, 600'000,
          "life of transfer tickets; an upload idle for so long is dead");

namespace lorry::store {
namespace {

absl::StatusOr<StoreOptions> OptionsFromFlags() {
  StoreOptions options;
  LORRY_ASSIGN_OR_RETURN(options.data_dir, program::DataDir());
  options.listen = program::ServerFlags();
  options.tokens_file = program::TokensFile();
  options.admin_listen = absl::GetFlag(FLAGS_admin_listen);
  options.ucx = program::UcxOn();
  options.ucx_devices = program::UcxDevices();
  options.advertise_host = absl::GetFlag(FLAGS_advertise_host);
  options.disk_free_min = absl::GetFlag(FLAGS_disk_free_min_bytes);
  options.catalog.total_bytes_max = absl::GetFlag(FLAGS_quota_bytes);
  options.catalog.adapter_bytes_max = absl::GetFlag(FLAGS_adapter_quota_bytes);
  options.catalog.store_keep = absl::GetFlag(FLAGS_store_keep);
  options.catalog.ticket_life_ms = absl::GetFlag(FLAGS_ticket_life_ms);
  options.fan_out.width = absl::GetFlag(FLAGS_relay_width);
  options.ahead_readers = absl::GetFlag(FLAGS_ahead_readers);
  options.sweep_interval_ms = absl::GetFlag(FLAGS_sweep_interval_ms);
  options.version = program::kVersion;
  options.config_json = program::FlagsJson;
  return options;
}

absl::Status Serve(runtime::Signals& signals) {
  LORRY_ASSIGN_OR_RETURN(StoreOptions options, OptionsFromFlags());
  program::WarnOfOpenMemory(options.ucx_devices);
  absl::Status fatal;  // written before Stop returns
  options.on_fatal = [&](const absl::Status& why) {
    fatal = why;
    signals.RequestStop();
  };
  LORRY_ASSIGN_OR_RETURN(const std::unique_ptr<StoreServer> server,
                         StoreServer::Start(std::move(options)));
  LORRY_RETURN_IF_ERROR(
      program::Ready({{"grpc", server->grpc_address()},
                      {"transfer", absl::StrJoin(server->transfer_addresses(), " ")},
                      {"admin", server->admin_address()}}));
  signals.Wait();
  spdlog::info("draining");
  program::LeaveUnless(server->Stop(), fatal);
  return fatal;
}

}  // namespace
}  // namespace lorry::store

int main(int argc, char** argv) {
  return lorry::program::Main(
      argc, argv, "adapter-store",
      "Keeps adapter versions: takes uploads, checks and stores them, hands "
      "them out.",
      lorry::store::Serve);
}
