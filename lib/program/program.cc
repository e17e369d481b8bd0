#include "lib/program/program.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/reflection.h"
#include "absl/flags/usage.h"
#include "absl/flags/usage_config.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "lib/base/error.h"
#include "lib/base/strings.h"

namespace lorry::program {

struct LogLevel {
  spdlog::level::level_enum value;
};

bool AbslParseFlag(absl::string_view text, LogLevel* level, std::string* error) {
  const std::string name = absl::AsciiStrToLower(text);
  level->value = spdlog::level::from_str(name);
  // Whatever it does not know is "off" to spdlog.
  const bool is_known = level->value != spdlog::level::off || name == "off";
  if (!is_known) *error = "it is trace, debug, info, warn, error, critical or off";
  return is_known;
}

std::string AbslUnparseFlag(LogLevel level) {
  const auto name = spdlog::level::to_string_view(level.value);
  return {name.data(), name.size()};
}

}  // namespace lorry::program

ABSL_FLAG(std::string, listen, "127.0.0.1:0",
          "host:port of the gRPC services; port 0 takes a free one");
ABSL_FLAG(std::string, admin_listen, "127.0.0.1:0",
          "host:port of /metrics, /livez, /readyz and /configz (plain HTTP)");
ABSL_FLAG(std::string, data_dir, "", "directory of everything durable; created if it is missing");
ABSL_FLAG(std::string, auth_token_file, "",
          "who may call: one `<role>[,<role>...] <token> [name]` a line");
ABSL_FLAG(std::string, tls_cert, "", "PEM file of the server's certificate");
ABSL_FLAG(std::string, tls_key, "", "PEM file of its key");
ABSL_FLAG(std::string, tls_client_ca, "",
          "PEM file of the authority that clients' certificates must be signed by (mTLS)");
ABSL_FLAG(bool, insecure_listen_anywhere, false,
          "allow to listen elsewhere than on loopback without credentials; everybody who reaches "
          "the port is an operator");
ABSL_FLAG(std::string, token_file, "",
          "file with the bearer token that this program shows to other services");
ABSL_FLAG(std::string, tls_ca, "",
          "PEM file of the authority that signs other services' certificates");
ABSL_FLAG(std::string, ready_file, "",
          "written once everything serves: a JSON object of addresses");
ABSL_FLAG(lorry::program::LogLevel, log_level, {spdlog::level::info},
          "trace, debug, info, warn, error, critical or off");

namespace lorry::program {
namespace {

// Flags whose values may hold secrets: commands carry tokens and passwords.
constexpr std::array<absl::string_view, 1> kPrivateFlags = {"on_wedged"};

bool IsOurFlagFile(absl::string_view file) {
  return !absl::StartsWith(file, "absl/") && !absl::StrContains(file, "/absl/");
}

// A message as one line whatever is in it: names and paths come from strangers, who could write lines
// of their own with them, or what terminals obey.
class OneLine final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&,
              spdlog::memory_buf_t& line) override {
    for (const char c : message.payload) {
      const auto byte = static_cast<unsigned char>(c);
      if (byte >= 0x20 && byte != 0x7f) {
        line.push_back(c);
      } else {
        constexpr std::string_view kHex = "0123456789abcdef";
        for (const char hex : {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]}) line.push_back(hex);
      }
    }
  }
  std::unique_ptr<custom_flag_formatter> clone() const override {
    return std::make_unique<OneLine>();
  }
};

void SetUpLogging(std::string_view name) {
  auto logger = spdlog::stderr_color_mt(std::string(name));
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  formatter->add_flag<OneLine>('v').set_pattern("%Y-%m-%dT%H:%M:%S.%e %^%L%$ %n %v");
  logger->set_formatter(std::move(formatter));
  logger->set_level(absl::GetFlag(FLAGS_log_level).value);
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(logger);
}

void LogError(const absl::Status& status) {
  const std::string reason = ReasonOf(status);
  spdlog::error("{}{}{}", reason, reason.empty() ? "" : ": ", std::string(status.message()));
}

// Abseil knows flags by their C++ names; people, charts and compose files write --data-dir. In
// place: a value never changes.
void UnderscoreFlagNames(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    if (!absl::StartsWith(argv[i], "--")) continue;
    for (char* c = argv[i] + 2; *c != '\0' && *c != '='; ++c) {
      if (*c == '-') *c = '_';
    }
  }
}

}  // namespace

int Main(int argc, char** argv, std::string_view name, std::string_view what_for,
         const std::function<absl::Status(runtime::Signals&)>& run) {
  absl::SetProgramUsageMessage(
      absl::StrCat(ToAbsl(what_for), "\nusage: ", ToAbsl(name), " [--flag=value ...]"));
  absl::FlagsUsageConfig usage;
  usage.contains_helpshort_flags = IsOurFlagFile;
  usage.contains_help_flags = IsOurFlagFile;
  usage.version_string = [name] { return absl::StrCat(ToAbsl(name), " ", kVersion, "\n"); };
  absl::SetFlagsUsageConfig(usage);
  UnderscoreFlagNames(argc, argv);
  const std::vector<char*> rest = absl::ParseCommandLine(argc, argv);
  if (rest.size() > 1) {
    std::fprintf(stderr,
                 "%s: unexpected argument \"%s\"; flags are written --flag=value, see --help\n",
                 std::string(name).c_str(), rest[1]);
    return 2;
  }
  SetUpLogging(name);
  RaiseDescriptorLimit();
  runtime::Signals signals;
  const absl::Status status = run(signals);
  if (status.ok()) return 0;
  LogError(status);
  return 1;
}

void RaiseDescriptorLimit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlim_t wanted = std::min<rlim_t>(limit.rlim_max, kMostDescriptors);
  if (limit.rlim_cur >= wanted) return;
  limit.rlim_cur = wanted;
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) {
    spdlog::warn("the limit on open files stays below {}: {}", wanted, std::strerror(errno));
  }
}

rpc::ServerOptions ServerFlags() {
  rpc::ServerOptions options;
  options.address = absl::GetFlag(FLAGS_listen);
  options.tls = {absl::GetFlag(FLAGS_tls_cert), absl::GetFlag(FLAGS_tls_key),
                 absl::GetFlag(FLAGS_tls_client_ca)};
  options.allow_insecure = absl::GetFlag(FLAGS_insecure_listen_anywhere);
  return options;
}

std::string TokensFile() { return absl::GetFlag(FLAGS_auth_token_file); }

std::string DialledCa() { return absl::GetFlag(FLAGS_tls_ca); }

absl::StatusOr<std::unique_ptr<rpc::Access>> AccessFlags() {
  return rpc::Access::Open(absl::GetFlag(FLAGS_auth_token_file),
                           !absl::GetFlag(FLAGS_tls_client_ca).empty());
}

namespace {

rpc::ChannelOptions ChannelTo(const std::string& target) {
  rpc::ChannelOptions options;
  options.target = target;
  options.tls.ca = absl::GetFlag(FLAGS_tls_ca);
  options.tls.cert = options.tls.ca.empty() ? "" : absl::GetFlag(FLAGS_tls_cert);
  options.tls.key = options.tls.ca.empty() ? "" : absl::GetFlag(FLAGS_tls_key);
  return options;
}

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::Channel>> DialByTicket(const std::string& target,
                                                            const std::string& tls_name) {
  rpc::ChannelOptions options = ChannelTo(target);
  options.tls.server_name = tls_name;
  return rpc::MakeChannel(options);
}

absl::StatusOr<std::shared_ptr<rpc::FreshChannel>> Dial(const std::string& target,
                                                        std::vector<std::string> idempotent,
                                                        int receive_max_bytes) {
  rpc::ChannelOptions options = ChannelTo(target);
  options.token_file = absl::GetFlag(FLAGS_token_file);
  options.idempotent = std::move(idempotent);
  options.receive_max_bytes = receive_max_bytes;
  return rpc::FreshChannel::Open(options);
}

absl::StatusOr<std::string> DataDir() {
  const std::string path = absl::GetFlag(FLAGS_data_dir);
  if (path.empty()) {
    return Error(absl::StatusCode::kInvalidArgument, "",
                 "--data-dir is missing: name a directory on a disk that lasts");
  }
  namespace fs = std::filesystem;
  std::error_code error;
  const bool made = fs::create_directories(path, error);
  if (made && !error) fs::permissions(path, fs::perms::owner_all, error);
  if (error) {
    return Error(absl::StatusCode::kInvalidArgument, "",
                 absl::StrCat("--data-dir=", path, " cannot be made: ", error.message()));
  }
  // A directory that was there is its owner's to open or to close; the files in it are private.
  if ((fs::status(path, error).permissions() & fs::perms::others_write) != fs::perms::none) {
    spdlog::warn("every user of this machine can put files into --data-dir={}: chmod it to 700",
                 path);
  }
  return path;
}

absl::Status Ready(const std::map<std::string, std::string>& addresses) {
  const std::string json = nlohmann::json(addresses).dump();
  spdlog::info("ready {}", json);
  // tidy: allow print: for scripts that read stdout; the log has it too
  std::printf("READY %s\n", json.c_str());
  std::fflush(stdout);
  const std::string path = absl::GetFlag(FLAGS_ready_file);
  if (path.empty()) return absl::OkStatus();
  {
    std::ofstream file(path + ".tmp", std::ios::trunc);
    file << json << "\n";
    file.flush();
    if (!file) {
      return Error(
          absl::StatusCode::kInvalidArgument, "",
          absl::StrCat("--ready-file=", path, " cannot be written: ", std::strerror(errno)));
    }
  }
  std::error_code error;
  std::filesystem::rename(path + ".tmp", path, error);
  if (error)
    return Error(absl::StatusCode::kInvalidArgument, "",
                 absl::StrCat("--ready-file=", path, ": ", error.message()));
  return absl::OkStatus();
}

void LeaveUnless(const absl::Status& stopped, const absl::Status& fatal) {
  if (stopped.ok()) return;
  if (!fatal.ok()) LogError(fatal);
  spdlog::error("leaving without waiting any longer: {}", std::string(stopped.message()));
  std::fflush(nullptr);
  ::_exit(1);
}

std::string FlagsJson() {
  nlohmann::json flags = nlohmann::json::object();
  for (const auto& [name, flag] : absl::GetAllFlags()) {
    if (!IsOurFlagFile(flag->Filename())) continue;
    const bool hidden =
        std::find(kPrivateFlags.begin(), kPrivateFlags.end(), name) != kPrivateFlags.end() &&
        flag->CurrentValue() != flag->DefaultValue();
    flags[std::string(name)] = hidden ? "(set)" : flag->CurrentValue();
  }
  return flags.dump(2, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace lorry::program
