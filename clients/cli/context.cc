#include "clients/cli/context.h"

#include <google/protobuf/util/json_util.h>
#include <pwd.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "clients/cli/policy_text.h"
#include "clients/cli/reach.h"
#include "clients/cli/remedies.h"
#include "lib/base/a_few.h"
#include "lib/base/did_you_mean.h"
#include "lib/base/error.h"
#include "lib/base/strings.h"

namespace lorry::cli {
namespace {

// A call answers within milliseconds; ten seconds outlast a restart and a person's patience.
constexpr int64_t kCallTimeoutMs = 10'000;
// Ten minutes carry 46 GB, the largest known adapter, at 80 MB/s.
constexpr int64_t kTransferTimeoutMs = 600'000;

// Where stdout is no terminal: what two editor windows side by side do not show.
constexpr size_t kWideColumns = 160;

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// As Python's pathlib finds it, which looks for the same file: a service manager may start programs
// without $HOME. Empty: this user has none, as in most containers.
std::string Home() {
  if (std::string home = Environment("HOME"); !home.empty()) return home;
  std::vector<char> room(1 << 14);
  passwd entry = {};
  passwd* found = nullptr;
  const int failed = ::getpwuid_r(::getuid(), &entry, room.data(), room.size(), &found);
  return failed == 0 && found != nullptr ? found->pw_dir : "";
}

std::string FirstOf(std::string a, std::string b, std::string c) {
  return !a.empty() ? std::move(a) : !b.empty() ? std::move(b) : std::move(c);
}

// gRPC would look for a machine named http.
absl::Status CheckAddress(const std::string& address, const char* flag) {
  for (const std::string scheme : {"http://", "https://"}) {
    if (!address.starts_with(scheme)) continue;
    return Usage(absl::StrCat("the address ", address, " (--", flag, ") is host:port; leave ",
                              scheme, " out"));
  }
  return absl::OkStatus();
}

// "INVALID_ARGUMENT" for a status that carries no reason.
std::string CodeWord(const absl::Status& status) { return absl::StatusCodeToString(status.code()); }

}  // namespace

std::string StateDir() {
  const std::string state = Environment("XDG_STATE_HOME");
  if (!state.empty()) return state + "/lorry";
  return Home() + "/.local/state/lorry";
}

std::string UpFile() { return StateDir() + "/up.json"; }

nlohmann::json RunningUp() {
  std::ifstream file(UpFile());
  // A file that is being replaced or was broken off says nothing; flags and environment remain.
  nlohmann::json up = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  const bool has_pid = up.is_object() && up.contains("pid") && up["pid"].is_number_integer();
  const pid_t pid = has_pid ? up["pid"].get<pid_t>() : 0;
  const bool runs = pid > 0 && (::kill(pid, 0) == 0 || errno == EPERM);  // as another user
  return runs ? up : nlohmann::json::object();
}

std::string TextIn(const nlohmann::json& object, const char* key) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

std::string OwnProgram() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).string();
}

Context::Context(const std::vector<Verb>& verbs, const Arguments& arguments)
    : verbs_(verbs), arguments_(arguments) {
  if (arguments.Has("timeout")) timeout_ms_ = arguments.Milliseconds("timeout");
  json_ = arguments.Has("json");
  terminal_ = ::isatty(STDOUT_FILENO) == 1;
  winsize window{};
  const bool has_size = ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 0;
  columns_ = has_size ? window.ws_col : kWideColumns;
  const bool plain = arguments.Has("no-colour") || !Environment("NO_COLOR").empty() || json_;
  colour_ = terminal_ && !plain;
  bars_ = ::isatty(STDERR_FILENO) == 1 && !json_;
  FindAddresses();
}

void Context::FindAddresses() {
  const nlohmann::json up = RunningUp();
  const std::string up_store = TextIn(up, "store"), up_orchestrator = TextIn(up, "orchestrator");
  store_ = FirstOf(arguments_.Text("store"), Environment("LORRY_STORE"), "");
  orchestrator_ = FirstOf(arguments_.Text("orchestrator"), Environment("LORRY_ORCHESTRATOR"), "");
  // Never one fleet's store with another's orchestrator, nor one's token shown to another.
  const bool is_up = (store_.empty() || store_ == up_store) &&
                     (orchestrator_.empty() || orchestrator_ == up_orchestrator);
  is_other_than_up_ = !is_up && !up.empty();
  if (!is_up) return;
  store_ = up_store;
  orchestrator_ = up_orchestrator;
  up_token_file_ = TextIn(up, "token_file");
  for (const nlohmann::json& engine : up.value("engines", nlohmann::json::array()))
    engine_urls_[TextIn(engine, "member")] = TextIn(engine, "engine");
}

rpc::ClientTls Context::Tls() const {
  const auto of = [&](const char* flag, const char* variable) {
    return FirstOf(arguments_.Text(flag), Environment(variable), "");
  };
  return {.ca = of("tls-ca", "LORRY_CA_FILE"),
          .cert = of("tls-cert", "LORRY_CERT_FILE"),
          .key = of("tls-key", "LORRY_KEY_FILE")};
}

absl::Status Context::Explain(const absl::Status& status) const {
  if (ReasonOf(status) == "NO_ADDRESS" && is_other_than_up_) {
    return Error(status.code(), "NO_ADDRESS",
                 absl::StrCat(status.message(), "; what `lorry up` runs here is not the fleet of ",
                              store_.empty() ? orchestrator_ : store_));
  }
  if (!absl::IsUnavailable(status) || !ReasonOf(status).empty()) return status;
  for (const std::string& address : {store_, orchestrator_}) {
    if (!address.empty()) LORRY_RETURN_IF_ERROR(CheckTls(address, Tls()));
  }
  return status;
}

client::ConnectOptions Context::Reached() const {
  const std::string token_file = arguments_.Text("token-file");
  const std::string token = token_file.empty() ? Environment("LORRY_TOKEN") : "";
  return {.store = store_,
          .orchestrator = orchestrator_,
          .token = token,
          .token_file = FirstOf(token_file, Environment("LORRY_TOKEN_FILE"),
                                token.empty() ? up_token_file_ : ""),
          .tls = Tls()};
}

absl::StatusOr<client::Client*> Context::Client() {
  if (client_ != nullptr) return client_.get();
  LORRY_RETURN_IF_ERROR(CheckAddress(store_, "store"));
  LORRY_RETURN_IF_ERROR(CheckAddress(orchestrator_, "orchestrator"));
  client::ConnectOptions options = Reached();
  options.call_timeout_ms = TimeoutOr(kCallTimeoutMs);
  options.transfer_timeout_ms = TimeoutOr(kTransferTimeoutMs);
  options.wait_for_services = timeout_ms_.has_value();
  // $HOME or $XDG_STATE_HOME of somebody else, as under sudo.
  if (const std::string& file = options.token_file;
      !file.empty() && file == up_token_file_ && ::euidaccess(file.c_str(), R_OK) != 0) {
    return Error(absl::StatusCode::kFailedPrecondition, "TOKEN_UNREADABLE",
                 absl::StrCat(UpFile(), " names the fleet of ", store_, ", and its token ", file,
                              " cannot be read: ", std::strerror(errno)));
  }
  LORRY_ASSIGN_OR_RETURN(client_, client::Client::Connect(options));
  return client_.get();
}

absl::StatusOr<std::string> Context::Pool(const std::string& adapter, const std::string& named) {
  if (!named.empty()) return named;
  LORRY_ASSIGN_OR_RETURN(client::Client * client, Client());
  const auto known = client->GetAdapter(adapter);
  if (!known.ok()) return Annotate(known.status(), "which pool is meant, as --pool names none");
  return OnlyPool(adapter, known->adapter().policy());
}

absl::StatusOr<common::v1::VersionRef> Context::Resolve(const std::string& adapter,
                                                        const fleet::Selector& version,
                                                        const std::string& pool) {
  LORRY_ASSIGN_OR_RETURN(client::Client * client, Client());
  const auto unknown = [&](const std::string& what) {
    return Error(absl::StatusCode::kNotFound, "UNKNOWN_VERSION", absl::StrCat(adapter, " ", what));
  };
  using Kind = fleet::Selector::Kind;
  switch (version.kind) {
    case Kind::kNumber:
      return client::MakeRef(adapter, 0, version.number.value);
    case Kind::kVersion:
      return client::MakeRef(adapter, version.run.value, version.number.value);
    case Kind::kNewest: {
      LORRY_ASSIGN_OR_RETURN(const auto newest, client->Versions(adapter, 0, 1));
      if (newest.empty()) return unknown("has no stored version yet");
      return newest.front().ref();
    }
    case Kind::kLatest: {
      LORRY_ASSIGN_OR_RETURN(const std::string meant, Pool(adapter, pool));
      LORRY_ASSIGN_OR_RETURN(const auto status, client->Status(meant, adapter));
      for (const auto& state : status.pools()) {
        if (state.has_latest()) return state.latest();
      }
      return unknown(absl::StrCat("has no version that pool ", meant, " decided on yet"));
    }
    case Kind::kBase:
      return unknown("is asked for its base model, which is no stored version");
    case Kind::kAlias:
      break;
  }
  LORRY_ASSIGN_OR_RETURN(const auto known, client->GetAdapter(adapter));
  std::string names;
  for (const auto& alias : known.aliases()) {
    if (alias.name() == version.alias.value) return alias.version();
    absl::StrAppend(&names, names.empty() ? "" : ", ", alias.name());
  }
  return unknown(absl::StrCat("has no alias \"", version.alias.value, "\"; it has ",
                              names.empty() ? "none" : names));
}

absl::StatusOr<lorry::sync::v1::GetStatusResponse> StatusOf(client::Client& client,
                                                            const std::string& pool,
                                                            const std::string& adapter) {
  LORRY_ASSIGN_OR_RETURN(auto status, client.Status(pool, adapter));
  if (!pool.empty() && status.members_size() == 0 && status.pools_size() == 0) {
    LORRY_ASSIGN_OR_RETURN(const auto all, client.Status());
    std::set<std::string> named;
    for (const auto& member : all.members()) named.insert(member.pool());
    for (const auto& known : all.pools()) named.insert(known.pool());
    const std::vector<std::string> known(named.begin(), named.end());
    const std::string others = known.empty()
                                   ? ", nor any other yet"
                                   : absl::StrCat(", only ", AFew(known), DidYouMean(pool, known));
    if (!named.contains(pool)) {
      return Error(absl::StatusCode::kNotFound, "UNKNOWN_POOL",
                   absl::StrCat("no engine and no policy names a pool ", pool, others));
    }
  }
  if (!adapter.empty() && status.pools_size() == 0 && status.leases_size() == 0) {
    // One that is stored may have no engine; the store knows what the name was meant to be. It
    // need not be reached to look at engines.
    const auto known = client.GetAdapter(adapter);
    if (absl::IsNotFound(known.status())) return known.status();
  }
  return status;
}

std::string ToText(const common::v1::VersionRef& ref) {
  return ref.run() == 0 ? absl::StrCat("v", ref.number())
                        : absl::StrCat("r", ref.run(), ".", ref.number());
}

std::string ToJson(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  std::string json;
  const auto status = google::protobuf::util::MessageToJsonString(message, &json, options);
  return status.ok() ? json : "{}";
}

void Context::PrintJson(const google::protobuf::Message& message) const {
  Print(ToJson(message) + "\n");
}

std::string EnumWord(const google::protobuf::EnumDescriptor& type, int value) {
  const auto* found = type.FindValueByNumber(value);
  const auto* zero = type.FindValueByNumber(0);
  if (found == nullptr || zero == nullptr) return absl::StrCat(value);
  // The zero value is TYPE_NAME_UNSPECIFIED, which gives the common beginning.
  const std::string& base = zero->name();
  const size_t prefix = base.size() - std::string_view("UNSPECIFIED").size();
  return found->name().size() > prefix ? found->name().substr(prefix) : found->name();
}

void Context::PrintJson(std::initializer_list<std::pair<const char*, JsonValue>> object) const {
  nlohmann::json json = nlohmann::json::object();
  for (const auto& [key, value] : object) {
    std::visit([&](const auto& plain) { json[key] = plain; }, value);
  }
  Print(json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

int Report(const absl::Status& status, const Verb* verb, bool json, bool colour) {
  const std::string reason = ReasonOf(status);
  const std::string word = reason.empty() ? CodeWord(status) : reason;
  const bool unreachable = absl::IsUnavailable(status) && reason.empty();
  std::string remedy = Remedy(reason);
  if (reason == "USAGE" && verb != nullptr) remedy = absl::StrCat("lorry help ", verb->name);
  if (unreachable) remedy = "check the address, and `lorry doctor`";
  const std::string message(status.message());
  if (json) {
    const nlohmann::json object = {{"reason", word}, {"message", message}, {"remedy", remedy}};
    std::fprintf(stderr, "%s\n",
                 object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
  } else {
    std::fprintf(stderr, "%s %s: %s\n", Paint("lorry:", Colour::kBad, colour).c_str(), word.c_str(),
                 Visible(message, "\n").c_str());
    if (!remedy.empty()) std::fprintf(stderr, "  → %s\n", remedy.c_str());
  }
  if (reason == "USAGE") return kUsage;
  return unreachable ? kUnreachable : kFailed;
}

}  // namespace lorry::cli
