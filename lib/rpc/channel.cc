#include "lib/rpc/channel.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <grpcpp/support/client_interceptor.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <tuple>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "lib/base/error.h"
#include "lib/base/mutex.h"
#include "lib/base/strings.h"
#include "lib/rpc/callback_queue.h"
#include "lib/rpc/file_stamp.h"

namespace lorry::rpc {
namespace {

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  if (path.empty()) return std::string();
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) {
    return Error(absl::StatusCode::kInvalidArgument, "",
                 absl::StrCat("the file ", path, " cannot be read"));
  }
  return text.str();
}

constexpr int64_t kLookIntervalMs = 1'000;

// The token that calls show. One in a file may be replaced while the program runs, as the tokens
// that a server knows may be. Any thread.
class ShownToken {
 public:
  // `file` holds `token`, or is empty.
  ShownToken(const std::string& token, std::string file)
      : file_(std::move(file)), header_(token.empty() ? "" : absl::StrCat("Bearer ", token)) {}

  // Empty while a file that is being replaced has not held any yet.
  std::string Header() LORRY_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    const Tick now = SteadyClock().Now();
    if (!file_.empty() && now >= next_look_) {
      next_look_ = now + kLookIntervalMs;
      Look();
    }
    return header_;
  }

 private:
  // A file that is gone, empty or wrong takes no token away.
  void Look() LORRY_REQUIRES(mutex_) {
    const FileStamp stamp = StampOf(file_);
    if (stamp == stamp_) return;
    const absl::StatusOr<std::string> token = TokenToShow("", file_);
    std::string complaint(token.status().message());
    if (complaint != complaint_ && !token.ok()) {
      spdlog::error("{}; until that is mended, the token that was read before is shown", complaint);
    }
    complaint_ = std::move(complaint);
    if (!token.ok() || token->empty()) return;
    header_ = absl::StrCat("Bearer ", *token);
    stamp_ = stamp;
  }

  const std::string file_;
  Mutex mutex_;
  std::string header_ LORRY_GUARDED_BY(mutex_);
  FileStamp stamp_ LORRY_GUARDED_BY(mutex_);
  // What was said of a file that holds no token; empty: it does.
  std::string complaint_ LORRY_GUARDED_BY(mutex_);
  Tick next_look_ LORRY_GUARDED_BY(mutex_) = 0;
};

// gRPC refuses call credentials on plaintext channels, loopback or not; an interceptor adds the
// header to any.
class TokenInterceptor final : public grpc::experimental::Interceptor {
 public:
  explicit TokenInterceptor(std::string header) : header_(std::move(header)) {}
  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    using grpc::experimental::InterceptionHookPoints;
    if (!header_.empty() &&
        methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_INITIAL_METADATA)) {
      methods->GetSendInitialMetadata()->emplace("authorization", header_);
    }
    methods->Proceed();
  }

 private:
  const std::string header_;
};

class TokenInterceptorFactory final : public grpc::experimental::ClientInterceptorFactoryInterface {
 public:
  TokenInterceptorFactory(const std::string& token, std::string file)
      : token_(token, std::move(file)) {}
  grpc::experimental::Interceptor* CreateClientInterceptor(
      grpc::experimental::ClientRpcInfo*) override {
    return new TokenInterceptor(token_.Header());
  }

 private:
  ShownToken token_;
};

// gRPC's own retries, by service config: with a budget, so that a struggling server is not drowned
// in them.
std::string RetryConfig(const std::vector<std::string>& idempotent) {
  nlohmann::json names = nlohmann::json::array();
  for (const std::string& call : idempotent) {
    const size_t slash = call.find('/');
    nlohmann::json name = {{"service", call.substr(0, slash)}};
    if (slash != std::string::npos) name["method"] = call.substr(slash + 1);
    names.push_back(std::move(name));
  }
  return nlohmann::json{{"retryThrottling", {{"maxTokens", 10}, {"tokenRatio", 0.1}}},
                        {"methodConfig",
                         {{{"name", names},
                           {"retryPolicy",
                            {{"maxAttempts", 5},
                             {"initialBackoff", "0.1s"},
                             {"maxBackoff", "2s"},
                             {"backoffMultiplier", 2},
                             {"retryableStatusCodes", {"UNAVAILABLE"}}}}}}}}
      .dump();
}

using grpc::experimental::FileWatcherCertificateProvider;

// One for all channels of the same files, as each has a thread of its own. Kept for good: gRPC's
// channels hold what lies within it, and not it.
std::shared_ptr<FileWatcherCertificateProvider> WatcherOf(const ClientTls& tls) {
  static Mutex mutex;
  static auto& watchers = *new std::map<std::tuple<std::string, std::string, std::string, int>,
                                        std::shared_ptr<FileWatcherCertificateProvider>>();
  MutexLock lock(mutex);
  auto& watcher = watchers[{tls.ca, tls.cert, tls.key, tls.reread_s}];
  if (watcher == nullptr) {
    watcher = std::make_shared<FileWatcherCertificateProvider>(tls.key, tls.cert, tls.ca,
                                                               static_cast<unsigned>(tls.reread_s));
  }
  return watcher;
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeCredentials(const ClientTls& tls) {
  if (tls.empty()) return grpc::InsecureChannelCredentials();
  for (const std::string& file : {tls.ca, tls.cert, tls.key}) {
    LORRY_RETURN_IF_ERROR(ReadFile(file).status());
  }
  if (tls.cert.empty() != tls.key.empty()) {
    return Error(absl::StatusCode::kInvalidArgument, "",
                 "a client certificate needs both the certificate and its key");
  }
  grpc::experimental::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(WatcherOf(tls));
  if (!tls.ca.empty()) options.watch_root_certs();
  if (!tls.cert.empty()) options.watch_identity_key_cert_pairs();
  return grpc::experimental::TlsCredentials(options);
}

// Longer than a handshake takes with a machine that is busy, short enough for an address that
// answers nothing.
constexpr int kHandshakeMs = 5'000;

grpc::ChannelArguments MakeArguments(const ChannelOptions& options) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, static_cast<int>(options.keepalive_interval_ms));
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, static_cast<int>(options.keepalive_timeout_ms));
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // A service that was restarted is dialled again soon: gRPC's own backoff grows to two minutes.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  // This one is the time that a handshake may take, whatever its name says: below it a service that
  // a whole fleet dials at once is dialled again and again, and never answers in time.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kHandshakeMs);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 2'000);
  // So is one that has moved to another address: gRPC asks for a name again after 30 s at the
  // soonest.
  arguments.SetInt(GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS, 1'000);
  if (!options.tls.empty() && !options.tls.server_name.empty()) {
    arguments.SetSslTargetNameOverride(options.tls.server_name);
  }
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, options.own_connection ? 1 : 0);
  // A proxy variable of the environment must not catch calls between Lorry's own services.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetMaxReceiveMessageSize(options.receive_max_bytes);
  if (!options.idempotent.empty()) {
    arguments.SetServiceConfigJSON(RetryConfig(options.idempotent));
  }
  return arguments;
}

// Channels to one target are made again and again; what is to be said of it is said once.
bool IsNews(const std::string& target) {
  constexpr size_t kTargetsMax = 64;
  static Mutex mutex;
  static auto& told = *new std::set<std::string>();
  MutexLock lock(mutex);
  if (told.size() >= kTargetsMax) told.clear();
  return told.insert(target).second;
}

}  // namespace

bool IsLoopback(const std::string& address) {
  return absl::StartsWith(address, "127.") || absl::StartsWith(address, "localhost:") ||
         absl::StartsWith(address, "[::1]:") || absl::StartsWith(address, "unix:");
}

bool SendsTokenInClear(const ChannelOptions& options) {
  const bool token = !options.token.empty() || !options.token_file.empty();
  return token && options.tls.empty() && !IsLoopback(options.target);
}

absl::StatusOr<std::string> TokenToShow(const std::string& token, const std::string& token_file) {
  std::string shown = token;
  if (shown.empty()) {
    LORRY_ASSIGN_OR_RETURN(shown, ReadFile(token_file));
  }
  absl::StripAsciiWhitespace(&shown);
  // gRPC ends the process over a header that has other bytes, and prints it. A space is between two
  // words, of which no server knows both as one token.
  if (std::all_of(shown.begin(), shown.end(), absl::ascii_isgraph)) return shown;
  return Error(absl::StatusCode::kInvalidArgument, "",
               absl::StrCat(token.empty() ? absl::StrCat("the file ", token_file)
                                          : std::string("what was given as the token"),
                            " is not one token: a single word of ASCII characters, and nothing "
                            "else beside it"));
}

absl::StatusOr<std::shared_ptr<grpc::Channel>> MakeChannel(const ChannelOptions& options) {
  if (SendsTokenInClear(options) && IsNews(options.target)) {
    spdlog::warn(
        "the token goes to {} unencrypted; name the authority of its certificate to use TLS",
        options.target);
  }
  HoldCallbackQueue();
  LORRY_ASSIGN_OR_RETURN(const auto credentials, MakeCredentials(options.tls));
  LORRY_ASSIGN_OR_RETURN(const std::string token, TokenToShow(options.token, options.token_file));
  std::vector<std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>> interceptors;
  // Also for a file that is empty for a moment, as it is replaced while this channel is made.
  if (!token.empty() || !options.token_file.empty()) {
    interceptors.push_back(std::make_unique<TokenInterceptorFactory>(
        token, options.token.empty() ? options.token_file : ""));
  }
  return grpc::experimental::CreateCustomChannelWithInterceptors(
      options.target, credentials, MakeArguments(options), std::move(interceptors));
}

void SetDeadlineIn(grpc::ClientContext& context, int64_t ms) {
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(ms));
}

void SetDeadlineAt(grpc::ClientContext& context, Tick deadline) {
  SetDeadlineIn(context, deadline - SteadyClock().Now());
}

}  // namespace lorry::rpc
