// adapter-store: flags in, one StoreServer, drain on SIGTERM.
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/flags/usage_config.h"
#include "absl/strings/match.h"
#include "lib/runtime/signals.h"
#include "services/adapter_store/server.h"

ABSL_FLAG(std::string, data_dir, "",
          "Where versions and the catalogue are kept; one process a time. Required");
ABSL_FLAG(std::string, listen, "127.0.0.1:7600", "gRPC host:port; port 0 takes a free one");
ABSL_FLAG(std::string, transfer_listen, "127.0.0.1:7601",
          "UCX host:port for bulk transfer, or off");
ABSL_FLAG(std::string, admin_listen, "127.0.0.1:7602", "Metrics and probes, host:port over HTTP");
ABSL_FLAG(std::string, advertise_host, "",
          "Host that peers dial for transfers; empty: as listened on");
ABSL_FLAG(std::string, ready_file, "",
          "Written once serving: one line of JSON with the bound addresses");
ABSL_FLAG(std::string, auth_token_file, "",
          "Bearer tokens: a line is `<role>[,<role>] <token> [name]`");
ABSL_FLAG(std::string, tls_cert, "", "PEM; with --tls_key turns TLS on");
ABSL_FLAG(std::string, tls_key, "", "PEM");
ABSL_FLAG(std::string, tls_client_ca, "", "PEM; clients must show a certificate signed by it");
ABSL_FLAG(bool, insecure_listen_anywhere, false, "Listen beyond loopback without credentials");
ABSL_FLAG(uint64_t, quota_bytes, 0, "Image bytes of all adapters together; 0: as many as fit");
ABSL_FLAG(uint64_t, adapter_quota_bytes, 0, "The same for an adapter whose policy sets no quota");
ABSL_FLAG(uint64_t, disk_free_min_bytes, uint64_t{256} << 20,
          "Uploads are refused rather than leave less free");
ABSL_FLAG(std::string, base_model_config, "",
          "config.json of the base model: shapes are checked against it");
ABSL_FLAG(int64_t, sweep_interval_ms, 1'000, "How often idle uploads and garbage are looked for");
ABSL_FLAG(int64_t, ticket_life_ms, 600'000,
          "Life of transfer tickets; an upload idle for so long is dead");

namespace lorry::store {

static StoreOptions OptionsFromFlags() {
  StoreOptions options;
  options.data_dir = absl::GetFlag(FLAGS_data_dir);
  options.listen.address = absl::GetFlag(FLAGS_listen);
  options.listen.tls = {.cert = absl::GetFlag(FLAGS_tls_cert),
                        .key = absl::GetFlag(FLAGS_tls_key),
                        .client_ca = absl::GetFlag(FLAGS_tls_client_ca)};
  options.listen.allow_insecure = absl::GetFlag(FLAGS_insecure_listen_anywhere);
  options.tokens_file = absl::GetFlag(FLAGS_auth_token_file);
  options.admin_listen = absl::GetFlag(FLAGS_admin_listen);
  options.transfer_listen = absl::GetFlag(FLAGS_transfer_listen);
  options.advertise_host = absl::GetFlag(FLAGS_advertise_host);
  options.base_model_config = absl::GetFlag(FLAGS_base_model_config);
  options.disk_free_min = absl::GetFlag(FLAGS_disk_free_min_bytes);
  options.catalog.total_bytes_max = absl::GetFlag(FLAGS_quota_bytes);
  options.catalog.adapter_bytes_max = absl::GetFlag(FLAGS_adapter_quota_bytes);
  options.catalog.ticket_life_ms = absl::GetFlag(FLAGS_ticket_life_ms);
  options.sweep_interval_ms = absl::GetFlag(FLAGS_sweep_interval_ms);
  options.version = LORRY_VERSION;
  return options;
}

// To stdout, for people and scripts, and to --ready_file by rename: whoever sees it sees all of it.
static void AnnounceReady(const StoreServer& server) {
  const std::string line = nlohmann::json{
      {"grpc", server.grpc_address()},
      {"transfer", server.transfer_addresses()},
      {"admin_port", server.admin_port()},
      {"pid", ::getpid()}}.dump();
  std::printf("READY %s\n", line.c_str());
  std::fflush(stdout);
  const std::string path = absl::GetFlag(FLAGS_ready_file);
  if (path.empty()) return;
  std::ofstream(path + ".new") << line << "\n";
  if (std::rename((path + ".new").c_str(), path.c_str()) != 0) {
    spdlog::warn("cannot write {}", path);
  }
}

// People write --data-dir, Abseil's flags are C++ names: dashes in a flag's name become
// underscores.
static std::vector<char*> WithUnderscores(int argc, char** argv) {
  std::vector<char*> args(argv, argv + argc);
  for (size_t i = 1; i < args.size() && std::string_view(args[i]) != "--"; ++i) {
    if (std::string_view(args[i]).substr(0, 2) != "--") continue;
    for (char* c = args[i] + 2; *c != '\0' && *c != '='; ++c) {
      if (*c == '-') *c = '_';
    }
  }
  return args;
}

static int Main() {
  runtime::Signals signals;
  auto server = StoreServer::Start(OptionsFromFlags());
  if (!server.ok()) {
    spdlog::error("cannot start: {}", server.status().ToString());
    return 1;
  }
  AnnounceReady(**server);
  const int signal = signals.Wait();
  spdlog::info("signal {}: draining", signal);
  if (absl::Status stopped = (*server)->Stop(); !stopped.ok()) {
    spdlog::error("leaving without waiting any longer: {}", stopped.ToString());
    std::fflush(nullptr);
    ::_exit(1);
  }
  return 0;
}

}  // namespace lorry::store

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage(
      "keeps LoRA adapter versions: takes uploads, checks and stores them, hands them out.\n"
      "  adapter-store --data-dir=/var/lib/lorry/store");
  absl::FlagsUsageConfig usage;  // --help shows this program's own flags
  usage.contains_help_flags = [](absl::string_view file) {
    return absl::EndsWith(file, "adapter_store/main.cc");
  };
  absl::SetFlagsUsageConfig(usage);
  std::vector<char*> args = lorry::store::WithUnderscores(argc, argv);
  absl::ParseCommandLine(argc, args.data());
  if (absl::GetFlag(FLAGS_data_dir).empty()) {
    std::fprintf(stderr, "--data-dir is required; --help lists all flags\n");
    return 2;
  }
  return lorry::store::Main();
}
