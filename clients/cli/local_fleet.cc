#include "clients/cli/local_fleet.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <openssl/rand.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "clients/cli/verb.h"
#include "lib/base/digest.h"
#include "lib/base/error.h"
#include "lib/rpc/channel.h"
#include "lib/runtime/signals.h"

namespace lorry::cli {
namespace {

// How often a ready file is looked for; services are up within some 300 ms.
constexpr int64_t kLookMs = 20;
// A proxy lets running requests go on for 25 s; then it has had its time.
constexpr int64_t kStopMs = 30'000;
// Waits before a restart: 0.5 s, doubling up to 30 s; after a minute of life they begin anew.
constexpr int64_t kBackoffFirstMs = 500;
constexpr int64_t kBackoffLastMs = 30'000;
constexpr int64_t kHealthyMs = 60'000;
constexpr char kAnyPort[] = "127.0.0.1:0";

// The token of whoever runs the fleet, and the services' list with it alone.
constexpr char kTokenFile[] = "token";
constexpr char kTokensFile[] = "tokens";
constexpr size_t kTokenBytes = 16;

// Flags of a program by name; without a value one is not given.
using Flags = std::vector<std::pair<const char*, std::optional<std::string>>>;

// What the flags of one program say, besides the options of the whole fleet.
struct Told {
  std::string name = {}, engine = {};
  std::string data_dir = {}, ready_file = {};
  std::optional<std::string> tokens_file = {};
  std::string listen = {}, admin_listen = {}, door_listen = {};
  client::ConnectOptions services = {};
};

absl::Status CannotWrite(const std::string& path, int why) {
  return Error(absl::StatusCode::kFailedPrecondition, "DATA_DIR_UNUSABLE",
               absl::StrCat(path, " cannot be written: ", std::strerror(why),
                            "; name another folder with --data-dir"));
}

// Held for as long as this process lives: another over the same folder would take its token away.
absl::StatusOr<FileLock> LockFolder(const std::string& path, const std::string& folder) {
  FileLock lock(path);
  if (lock.error() != 0) return CannotWrite(path, lock.error());
  if (!lock.held()) {
    char pid[32] = {};
    if (::pread(lock.fd(), pid, sizeof(pid) - 1, 0) <= 0) pid[0] = '?';
    return Error(absl::StatusCode::kFailedPrecondition, "ALREADY_LOCKED",
                 absl::StrCat("process ", pid, " runs over ", folder,
                              " already; end it, or name another folder with --data-dir"));
  }
  if (::ftruncate(lock.fd(), 0) != 0 || ::dprintf(lock.fd(), "%d", ::getpid()) <= 0)
    return CannotWrite(path, errno);
  return lock;
}

// Readable by this user alone from its first byte on, whatever was there before.
absl::Status WriteSecret(const std::string& path, const std::string& text) {
  ::unlink(path.c_str());
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  const bool written =
      file >= 0 && ::write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  const int why = errno;
  if (file >= 0) ::close(file);
  return written ? absl::OkStatus() : CannotWrite(path, why);
}

std::string HostPort(const std::string& address) {
  const size_t scheme = address.find("://");
  return scheme == std::string::npos ? address : address.substr(scheme + 3);
}

// Whether a program could listen there now, as kAnyPort's host is where all of them do.
bool IsFree(const std::string& address) {
  uint32_t port = 0;
  if (!absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port)) return false;
  sockaddr_in there = {};
  there.sin_family = AF_INET;
  there.sin_port = htons(static_cast<uint16_t>(port));
  there.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int on = 1, tried = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  ::setsockopt(tried, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  const bool free = ::bind(tried, reinterpret_cast<const sockaddr*>(&there), sizeof(there)) == 0;
  ::close(tried);
  return free;
}

// What a service of an earlier life of this fleet listened on, as far as nobody else does by now.
nlohmann::json StillFree(const std::string& ready_file) {
  nlohmann::json addresses = nlohmann::json::object();
  const auto before = ReadReadyFile(ready_file);
  if (!before.has_value()) return addresses;
  for (const auto& [what, address] : before->items()) {
    if (IsFree(address.get<std::string>())) addresses[what] = address;
  }
  return addresses;
}

std::optional<std::string> Absolute(const std::string& file) {
  if (file.empty()) return std::nullopt;
  return std::filesystem::absolute(file).string();
}

Flags FlagsOf(const std::string& binary, const Told& told, const LocalFleetOptions& options) {
  Flags flags = {{"data-dir", told.data_dir},
                 {"ready-file", told.ready_file},
                 {"auth-token-file", told.tokens_file},
                 {"listen", told.listen},
                 {"admin-listen", told.admin_listen}};
  if (binary == "adapter-store") return flags;
  const client::ConnectOptions& services = told.services;
  flags.insert(flags.end(), {{"store", services.store},
                             {"token-file", Absolute(services.token_file)},
                             {"tls-ca", Absolute(services.tls.ca)},
                             {"tls-cert", Absolute(services.tls.cert)},
                             {"tls-key", Absolute(services.tls.key)}});
  if (binary != "engine-proxy") return flags;
  using Maybe = std::optional<std::string>;
  const std::string& config = options.base_model_config;
  flags.insert(flags.end(),
               {{"orchestrator", services.orchestrator},
                {"engine", told.engine},
                {"member", told.name},
                {"pool", options.pool},
                {"door-listen", told.door_listen},
                {"base-model-config", config.empty() ? Maybe() : config},
                {"base-model-unchecked", options.base_model_unchecked ? Maybe("true") : Maybe()}});
  return flags;
}

}  // namespace

absl::StatusOr<std::string> EngineUrl(const std::string& text) {
  std::string rest = text;
  if (rest.starts_with("http://")) rest = rest.substr(7);
  while (rest.ends_with("/")) rest.pop_back();
  uint32_t port = 0;
  if (absl::SimpleAtoi(rest, &port)) rest = absl::StrCat("127.0.0.1:", port);
  const size_t colon = rest.rfind(':');
  const bool named = colon != std::string::npos && colon > 0;
  if (!named || !absl::SimpleAtoi(rest.substr(colon + 1), &port) || port == 0 || port > 65535 ||
      rest.find('/') != std::string::npos) {
    return Usage(absl::StrCat("--engine=", text, " is no engine; write http://127.0.0.1:30000"));
  }
  return "http://" + rest;
}

std::string MemberName(const std::string& engine_url) {
  const std::string address = HostPort(engine_url);
  const size_t colon = address.rfind(':');
  const std::string host = address.substr(0, colon), port = address.substr(colon + 1);
  const bool here = host == "127.0.0.1" || host == "localhost" || host == "[::1]";
  std::string name = absl::StrCat(here ? "engine" : host, "-", port);
  for (char& c : name) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    const bool allowed = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
    if (!allowed) c = '-';
  }
  name.erase(0, name.find_first_not_of('-'));
  constexpr size_t kNameMax = 63;
  return name.size() > kNameMax ? name.substr(name.size() - kNameMax) : name;
}

absl::Status CheckProxyFlag(const std::string& flag) {
  const std::string name = absl::StrReplaceAll(flag.substr(0, flag.find('=')), {{"_", "-"}});
  // A second value would silently replace the first.
  for (const auto& [own, value] : FlagsOf("engine-proxy", {}, {})) {
    if (name != absl::StrCat("--", own) && name != absl::StrCat("--no", own)) continue;
    return Usage(
        absl::StrCat("--proxy-flag=", flag, ": this command gives its proxies --", own,
                     " itself, and `lorry help` lists the options of its own; for a proxy with "
                     "another value start engine-proxy yourself, as docs/OPERATIONS.md "
                     "says under \"Several hosts without Kubernetes\""));
  }
  return absl::OkStatus();
}

LocalFleet::LocalFleet(LocalFleetOptions options) : options_(std::move(options)) {
  sigset_t signals;
  ::sigemptyset(&signals);
  for (const int number : {SIGINT, SIGTERM, SIGCHLD}) ::sigaddset(&signals, number);
  // A terminal that is closed ends what was started in it.
  if (runtime::TakeHangUpBack()) ::sigaddset(&signals, SIGHUP);
  ::sigprocmask(SIG_BLOCK, &signals, nullptr);
  signal_fd_ = ::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
  if (!options_.services.has_value()) {
    services_.push_back({.name = "adapter-store", .binary = "adapter-store"});
    services_.push_back({.name = "sync-orchestrator", .binary = "sync-orchestrator"});
  }
  proxies_begin_ = services_.size();
  for (const std::string& engine : options_.engines) {
    services_.push_back({.name = MemberName(engine), .binary = "engine-proxy", .engine = engine});
  }
}

LocalFleet::~LocalFleet() {
  Stop();
  ::close(signal_fd_);
}

bool LocalFleet::Wait(int64_t ms) {
  // A negative descriptor is not looked at.
  const bool reads_stdin = options_.until_stdin_ends && !stdin_ended_;
  pollfd looked_at[] = {{.fd = signal_fd_, .events = POLLIN, .revents = 0},
                        {.fd = reads_stdin ? STDIN_FILENO : -1, .events = POLLIN, .revents = 0}};
  if (::poll(looked_at, std::size(looked_at), static_cast<int>(ms)) > 0) {
    char ignored[256];
    if (looked_at[1].revents != 0 && ::read(STDIN_FILENO, ignored, sizeof(ignored)) <= 0)
      asked_to_stop_ = stdin_ended_ = true;
    signalfd_siginfo info;
    while (::read(signal_fd_, &info, sizeof(info)) == sizeof(info)) {
      // A shell and the kernel both tell of a terminal that is closed; nobody has lost patience.
      const bool again = info.ssi_signo == SIGHUP && std::exchange(hung_up_, true);
      asked_to_stop_ = asked_to_stop_ || (info.ssi_signo != SIGCHLD && !again);
    }
  }
  return asked_to_stop_;
}

// What a service listens on: what it got the first time, so that the others, trainers and rollouts
// find it again, also after this fleet has been ended and started.
std::string LocalFleet::Bound(const Service& service, const char* what) const {
  const std::string address = service.ready.value(what, std::string());
  return address.empty() ? kAnyPort : HostPort(address);
}

std::string LocalFleet::InRun(const std::string& file) const {
  return absl::StrCat(options_.data_dir, "/run/", file);
}

// Another for each life of the fleet. Whoever can read the file may command it; without it every
// user of this machine could.
absl::Status LocalFleet::MakeToken() {
  std::array<uint8_t, kTokenBytes> random{};
  if (RAND_bytes(random.data(), random.size()) != 1) return absl::InternalError("no random bytes");
  const std::string token = ToHex(random);
  // Where the services run elsewhere, theirs is what this fleet shows them.
  const std::string shown = options_.services.has_value() ? options_.services->token : token;
  LORRY_RETURN_IF_ERROR(WriteSecret(InRun(kTokenFile), shown + "\n"));
  LORRY_RETURN_IF_ERROR(
      WriteSecret(InRun(kTokensFile), absl::StrCat("operator ", token, " lorry-up\n")));
  return FollowTheirToken();
}

// Whoever shows the services their token commands the doors on this machine with it, too: `lorry
// why`, `lorry drain`. A fleet of `lorry up` has another one after each start.
absl::Status LocalFleet::FollowTheirToken() {
  if (!options_.services.has_value()) return absl::OkStatus();
  LORRY_ASSIGN_OR_RETURN(const std::string theirs,
                         rpc::TokenToShow(options_.services->token, options_.services->token_file));
  if (theirs.empty() || theirs == their_token_) return absl::OkStatus();
  LORRY_RETURN_IF_ERROR(
      WriteSecret(InRun(kTokensFile), absl::StrCat("operator ", theirs, " the-fleet\n")));
  their_token_ = theirs;
  return absl::OkStatus();
}

// Services that are shown neither a token nor a certificate take everybody for an operator, and so
// do the doors that are attached to them: nobody would have a token to show. A token's file may be
// empty for a moment, as it is replaced.
bool LocalFleet::AsksForToken() const {
  if (!options_.services.has_value()) return true;
  const client::ConnectOptions& theirs = *options_.services;
  return !theirs.token.empty() || !theirs.token_file.empty() || !theirs.tls.cert.empty();
}

client::ConnectOptions LocalFleet::Services() const {
  if (!options_.services.has_value()) {
    return {.store = Bound(services_[0], "grpc"),
            .orchestrator = Bound(services_[1], "grpc"),
            .token_file = InRun(kTokenFile)};
  }
  client::ConnectOptions services = *options_.services;
  if (!services.token.empty()) services.token_file = InRun(kTokenFile);
  return services;
}

std::vector<std::string> LocalFleet::ArgumentsOf(const Service& service) const {
  const Told told = {
      .name = service.name,
      .engine = service.engine,
      .data_dir = absl::StrCat(options_.data_dir, "/", service.name),
      .ready_file = InRun(service.name + ".json"),
      .tokens_file = AsksForToken() ? std::make_optional(InRun(kTokensFile)) : std::nullopt,
      .listen = Bound(service, "grpc"),
      .admin_listen = Bound(service, "admin"),
      .door_listen = Bound(service, "door"),
      .services = Services()};
  std::vector<std::string> arguments;
  for (const auto& [name, value] : FlagsOf(service.binary, told, options_))
    if (value.has_value()) arguments.push_back(absl::StrCat("--", name, "=", *value));
  if (service.binary == "engine-proxy")
    for (const std::string& flag : options_.proxy_flags) arguments.push_back(flag);
  return arguments;
}

absl::Status LocalFleet::StartService(Service& service) {
  LORRY_ASSIGN_OR_RETURN(
      service.child,
      Child::Start({.name = service.name,
                    .binary = absl::StrCat(options_.bin_dir, "/", service.binary),
                    .arguments = ArgumentsOf(service),
                    .ready_file = InRun(service.name + ".json"),
                    .log_file = absl::StrCat(options_.data_dir, "/logs/", service.name, ".log")}));
  service.started_at = clock_.Now();
  service.start_again_at = 0;
  return absl::OkStatus();
}

absl::Status LocalFleet::AwaitReady(Service& service) {
  while (true) {
    if (auto ready = service.child->ReadyFile()) {
      service.ready = *std::move(ready);
      return absl::OkStatus();
    }
    if (!service.child->Running()) {
      return Error(absl::StatusCode::kAborted, "SERVICE_ENDED",
                   absl::StrCat(service.name, " ", service.child->HowItEnded(),
                                " before it was ready; its log is ", service.child->spec().log_file,
                                " and ends with\n", service.child->LastWords()));
    }
    if (clock_.Now() - service.started_at > options_.ready_timeout_ms) {
      return Error(
          absl::StatusCode::kDeadlineExceeded, "SERVICE_NOT_READY",
          absl::StrCat(service.name, " is not ready after ", options_.ready_timeout_ms / 1000,
                       " s; its log is ", service.child->spec().log_file));
    }
    if (Wait(kLookMs)) return absl::CancelledError("stopped");
  }
}

absl::Status LocalFleet::Start() {
  std::error_code error;
  for (const char* folder : {"run", "logs"}) {
    std::filesystem::create_directories(std::filesystem::path(options_.data_dir) / folder, error);
    if (error) {
      return Error(absl::StatusCode::kFailedPrecondition, "DATA_DIR_UNUSABLE",
                   absl::StrCat(options_.data_dir, " cannot be made: ", error.message(),
                                "; name another folder with --data-dir"));
    }
  }
  LORRY_ASSIGN_OR_RETURN(lock_, LockFolder(InRun("lock"), options_.data_dir));
  LORRY_RETURN_IF_ERROR(MakeToken());
  for (Service& service : services_) service.ready = StillFree(InRun(service.name + ".json"));
  // The store, then the orchestrator, which needs its address, then all proxies at once.
  for (size_t i = 0; i < proxies_begin_; ++i) {
    LORRY_RETURN_IF_ERROR(StartService(services_[i]));
    LORRY_RETURN_IF_ERROR(AwaitReady(services_[i]));
  }
  for (size_t i = proxies_begin_; i < services_.size(); ++i)
    LORRY_RETURN_IF_ERROR(StartService(services_[i]));
  for (size_t i = proxies_begin_; i < services_.size(); ++i)
    LORRY_RETURN_IF_ERROR(AwaitReady(services_[i]));
  return absl::OkStatus();
}

absl::Status LocalFleet::HandleDeath(Service& service) {
  const std::string how = absl::StrCat(service.name, " ", service.child->HowItEnded());
  if (!options_.keep_going) {
    return Error(absl::StatusCode::kAborted, "SERVICE_ENDED",
                 absl::StrCat(how, "; stopping the rest\n", service.child->LastWords()));
  }
  if (clock_.Now() - service.started_at > kHealthyMs) service.deaths = 0;
  const int64_t pause = std::min(kBackoffLastMs, kBackoffFirstMs << std::min(service.deaths, 10));
  ++service.deaths;
  service.start_again_at = clock_.Now() + pause;
  std::fprintf(stderr, "lorry: %s; starting it again in %lld ms\n%s", how.c_str(),
               static_cast<long long>(pause), service.child->LastWords().c_str());
  service.child.reset();
  return absl::OkStatus();
}

absl::Status LocalFleet::Run() {
  while (true) {
    int64_t wait_ms = 1'000;
    // A file that is just replaced cannot be read for a moment; the next look finds it.
    FollowTheirToken().IgnoreError();
    for (Service& service : services_) {
      if (service.child != nullptr && !service.child->Running()) {
        LORRY_RETURN_IF_ERROR(HandleDeath(service));
      }
      if (service.child == nullptr && clock_.Now() >= service.start_again_at) {
        std::fprintf(stderr, "lorry: starting %s again\n", service.name.c_str());
        LORRY_RETURN_IF_ERROR(StartService(service));
      }
      if (service.child == nullptr) {
        wait_ms = std::clamp<int64_t>(service.start_again_at - clock_.Now(), 1, wait_ms);
      }
    }
    if (Wait(wait_ms)) return absl::OkStatus();
  }
}

void LocalFleet::Stop() {
  // In the reverse order of need; the proxies together, since each may wait for its requests.
  const auto end = [this](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      if (services_[i].child != nullptr) services_[i].child->Signal(SIGTERM);
    }
    const Tick deadline = clock_.Now() + kStopMs;
    asked_to_stop_ = false;  // from here on another signal means: at once
    for (size_t i = begin; i < end; ++i) {
      while (services_[i].child != nullptr && services_[i].child->Running()) {
        if (!Wait(kLookMs) && clock_.Now() < deadline) continue;
        std::fprintf(stderr, "lorry: killing %s\n", services_[i].name.c_str());
        break;
      }
      services_[i].child.reset();
    }
  };
  end(proxies_begin_, services_.size());
  for (size_t i = proxies_begin_; i > 0; --i) end(i - 1, i);
}

nlohmann::json LocalFleet::Addresses() const {
  nlohmann::json engines = nlohmann::json::array();
  for (size_t i = proxies_begin_; i < services_.size(); ++i) {
    engines.push_back({{"member", services_[i].name},
                       {"engine", services_[i].engine},
                       {"door", services_[i].ready.value("door", "")},
                       {"admin", services_[i].ready.value("admin", "")}});
  }
  const client::ConnectOptions services = Services();
  nlohmann::json addresses = {
      {"store", services.store},           {"orchestrator", services.orchestrator},
      {"token_file", services.token_file}, {"engines", engines},
      {"data_dir", options_.data_dir},     {"pid", ::getpid()}};
  if (!options_.services.has_value()) {
    addresses["store_admin"] = services_[0].ready.value("admin", "");
    addresses["orchestrator_admin"] = services_[1].ready.value("admin", "");
  }
  return addresses;
}

}  // namespace lorry::cli
