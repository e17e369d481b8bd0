#include "lib/rpc/server.h"

#include <grpc/support/log.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/security/auth_metadata_processor.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <grpcpp/server_builder.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <future>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lib/base/error.h"
#include "lib/rpc/callback_queue.h"
#include "lib/rpc/channel.h"
#include "lib/rpc/status.h"

namespace lorry::rpc {

// Refuses calls of nobody that is known by their headers, before gRPC reads a message of theirs: a
// message is read, kept and parsed whole before a handler could refuse it. What the call needs, and
// the refusal's reason, is the handlers' business; here a caller learns the code alone.
//
// gRPC asks it about a call whose headers were under way when the server was shut down, also after
// that has returned: so it lives as long as gRPC likes, and forgets the gate before that goes.
class Doorkeeper final : public grpc::AuthMetadataProcessor {
 public:
  explicit Doorkeeper(Gate& gate) : gate_(&gate) {}
  bool IsBlocking() const override { return false; }  // a look-up, and once a second a stat
  grpc::Status Process(const InputMetadata& metadata, grpc::AuthContext* connection,
                       OutputMetadata*, OutputMetadata*) override {
    // gRPC's own services, health and reflection, answer everybody.
    const auto path = metadata.find(":path");
    if (path != metadata.end() && !path->second.starts_with("/lorry.")) return grpc::Status::OK;
    MutexLock lock(mutex_);
    return ToGrpc(gate_ == nullptr ? ShuttingDown() : gate_->Greet(metadata, *connection));
  }
  // Waits for the call that it is asked about just now.
  void ForgetGate() LORRY_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    gate_ = nullptr;
  }

 private:
  Mutex mutex_;
  Gate* gate_ LORRY_GUARDED_BY(mutex_);
};

namespace {

// How often stalled streams are looked for; a tenth of the shortest stall that makes sense.
constexpr int64_t kWatchIntervalMs = 500;
// Of shutdown_max_ms: what streams get to end by themselves, and what gRPC keeps for its own end.
constexpr int64_t kStreamsGraceMs = 300;
constexpr int64_t kGrpcGraceMs = 500;

absl::Status CheckExposure(const ServerOptions& options, const Gate& gate) {
  if (IsLoopback(options.address)) return absl::OkStatus();
  const bool is_open = gate.open_to_all() && !options.by_ticket;
  if (!is_open && !options.tls.empty()) return absl::OkStatus();
  const std::string what =
      absl::StrCat("listening on ", options.address,
                   is_open             ? " without credentials"
                   : options.by_ticket ? " with tickets and images in plaintext"
                                       : " with tokens in plaintext",
                   ": whoever reaches this port can ", is_open ? "command the fleet" : "read them");
  if (!options.allow_insecure) {
    return Error(absl::StatusCode::kFailedPrecondition, "INSECURE_LISTEN",
                 absl::StrCat(what,
                              "; configure TLS with tokens or client certificates, listen on "
                              "loopback, or allow it explicitly"));
  }
  spdlog::warn("{}", what);
  return absl::OkStatus();
}

// Plaintext for callers on this host alone: the same bytes on the wire, but a processor may look at
// each call, which gRPC's plain credentials do not have.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> HostCredentials(
    const std::string& address) {
  return grpc::experimental::LocalServerCredentials(absl::StartsWith(address, "unix:") ? UDS
                                                                                       : LOCAL_TCP);
}

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> TlsCredentials(const ServerTls& tls) {
  for (const std::string& file : {tls.cert, tls.key, tls.client_ca}) {
    if (!file.empty() && access(file.c_str(), R_OK) != 0) {
      return Error(absl::StatusCode::kInvalidArgument, "",
                   absl::StrCat("the PEM file ", file, " cannot be read"));
    }
  }
  if (tls.cert.empty() || tls.key.empty()) {
    return Error(absl::StatusCode::kInvalidArgument, "", "TLS needs both a certificate and a key");
  }
  using grpc::experimental::FileWatcherCertificateProvider;
  grpc::experimental::TlsServerCredentialsOptions options(
      std::make_shared<FileWatcherCertificateProvider>(tls.key, tls.cert, tls.client_ca,
                                                       tls.reread_s));
  options.watch_identity_key_cert_pairs();
  if (!tls.client_ca.empty()) {
    options.watch_root_certs();
    options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  }
  return grpc::experimental::TlsServerCredentials(options);
}

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeCredentials(
    const ServerOptions& options, std::shared_ptr<Doorkeeper> doorkeeper) {
  const bool plain = options.tls.empty();
  // gRPC asks nobody before it reads where an operator has declared a plaintext port off loopback.
  if (plain && !IsLoopback(options.address)) return grpc::InsecureServerCredentials();
  LORRY_ASSIGN_OR_RETURN(auto credentials,
                         plain ? HostCredentials(options.address) : TlsCredentials(options.tls));
  credentials->SetAuthMetadataProcessor(std::move(doorkeeper));
  return credentials;
}

void Configure(const ServerOptions& options, grpc::ServerBuilder& builder) {
  grpc::ResourceQuota quota("lorry");
  quota.Resize(static_cast<size_t>(options.memory_max_bytes));
  builder.SetResourceQuota(quota);
  builder.SetMaxReceiveMessageSize(options.receive_max_bytes);
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, options.headers_max_bytes);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, options.streams_per_connection_max);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS,
                             static_cast<int>(options.keepalive_interval_ms));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS,
                             static_cast<int>(options.keepalive_timeout_ms));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // Clients ping as often as we do; anything below half of it would be a flood.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             static_cast<int>(options.keepalive_interval_ms / 2));
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
}

// gRPC would log a page of its own about a port that it cannot have, which LISTEN_FAILED says in a line;
// whoever sets GRPC_VERBOSITY sees it.
std::unique_ptr<grpc::Server> StartQuietly(grpc::ServerBuilder& builder) {
  if (std::getenv("GRPC_VERBOSITY") != nullptr) return builder.BuildAndStart();
  gpr_set_log_verbosity(static_cast<gpr_log_severity>(GPR_LOG_SEVERITY_ERROR + 1));
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  gpr_set_log_verbosity(GPR_LOG_SEVERITY_ERROR);
  return server;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> Server::Start(ServerOptions options, Gate& gate,
                                                      std::vector<grpc::Service*> services) {
  HoldCallbackQueue();
  LORRY_RETURN_IF_ERROR(CheckExposure(options, gate));
  auto doorkeeper = std::make_shared<Doorkeeper>(gate);
  LORRY_ASSIGN_OR_RETURN(const auto credentials, MakeCredentials(options, doorkeeper));
  grpc::EnableDefaultHealthCheckService(true);
  if (options.reflection) grpc::reflection::InitProtoReflectionServerBuilderPlugin();

  std::unique_ptr<Server> server(new Server(std::move(options), gate, std::move(doorkeeper)));
  grpc::ServerBuilder builder;
  Configure(server->options_, builder);
  builder.AddListeningPort(server->options_.address, credentials, &server->port_);
  for (grpc::Service* service : services) builder.RegisterService(service);
  server->server_ = StartQuietly(builder);
  if (server->server_ == nullptr) {
    return Error(absl::StatusCode::kUnavailable, "LISTEN_FAILED",
                 absl::StrCat("cannot listen on ", server->options_.address,
                              ": the port is taken or the address is not this machine's"));
  }
  server->SetServing(false);
  server->watcher_ = std::thread([raw = server.get()] { raw->WatchStreams(); });
  return server;
}

Server::~Server() {
  const absl::Status stopped = Shutdown();
  if (!stopped.ok()) spdlog::error("rpc server: {}", std::string(stopped.message()));
}

std::string Server::address() const {
  if (absl::StartsWith(options_.address, "unix:")) return options_.address;
  const std::string host = options_.address.substr(0, options_.address.rfind(':'));
  const bool any = host == "0.0.0.0" || host == "[::]";
  return absl::StrCat(any ? "127.0.0.1" : host, ":", port_);
}

void Server::SetServing(bool serving) {
  if (auto* health = server_->GetHealthCheckService()) health->SetServingStatus(serving);
}

absl::Status Server::Shutdown() {
  {
    MutexLock lock(mutex_);
    if (stopping_) return absl::OkStatus();
    stopping_ = true;
  }
  wake_.notify_all();
  if (watcher_.joinable()) watcher_.join();
  if (server_ == nullptr) return absl::OkStatus();
  const SteadyClock clock;
  const Tick end = clock.Now() + options_.shutdown_max_ms;

  SetServing(false);
  gate_.Close();
  gate_.streams().CloseAll(ShuttingDown());
  if (!gate_.streams().WaitEmpty(clock.Now() + kStreamsGraceMs)) {
    gate_.streams().CancelAll(ShuttingDown());
  }
  const auto running = gate_.WaitIdle(end - kGrpcGraceMs);

  // A handler that never returns would hold gRPC's Shutdown for ever, so it gets a thread that can
  // be left behind.
  auto stopped = std::make_shared<std::promise<void>>();
  std::future<void> done = stopped->get_future();
  std::shared_ptr<grpc::Server> server = std::move(server_);
  const std::chrono::milliseconds reply_grace(options_.reply_grace_ms);
  std::thread([server, stopped, reply_grace] {
    server->Shutdown(std::chrono::system_clock::now() + reply_grace);
    stopped->set_value();
    // tidy: allow detach: it outlives a Shutdown that hangs, and owns what it uses
  }).detach();
  const auto waited = done.wait_for(std::chrono::milliseconds(end - clock.Now()));
  doorkeeper_->ForgetGate();
  if (waited == std::future_status::ready) return absl::OkStatus();
  return Error(absl::StatusCode::kDeadlineExceeded, "",
               absl::StrCat("handlers still run: ",
                            absl::StrJoin(running, ", ", absl::PairFormatter(" x"))));
}

void Server::WatchStreams() {
  const SteadyClock clock;
  MutexLock lock(mutex_);
  while (!stopping_) {
    wake_.wait_for(mutex_, std::chrono::milliseconds(kWatchIntervalMs));
    if (stopping_) return;
    const int cancelled = gate_.streams().CancelStalled(clock.Now(), options_.stream_stall_max_ms);
    if (cancelled > 0) spdlog::warn("rpc server: cancelled {} streams that do not read", cancelled);
  }
}

}  // namespace lorry::rpc
