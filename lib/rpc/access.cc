#include "lib/rpc/access.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "lib/base/clock.h"
#include "lib/base/digest.h"
#include "lib/base/error.h"
#include "lib/base/strings.h"

namespace lorry::rpc {
namespace {

constexpr std::array<std::pair<Role, const char*>, 4> kRoleWords = {{
    {Role::kReader, "reader"},
    {Role::kPublisher, "publisher"},
    {Role::kEngine, "engine"},
    {Role::kOperator, "operator"},
}};
constexpr std::string_view kBearer = "Bearer ";
constexpr std::string_view kRoleUri = "/role/";
constexpr std::string_view kAdapters = "adapters=";
constexpr int64_t kLookIntervalMs = 1'000;
// Whoever writes a file pauses for less between two writes.
constexpr auto kWritingPause = std::chrono::seconds(2);
// A token that can be guessed is none: 128 bits in base64 are 22 characters.
constexpr size_t kTokenBytesMin = 16;

absl::StatusOr<Roles> ParseRoles(std::string_view words) {
  Roles roles;
  for (const absl::string_view word : absl::StrSplit(ToAbsl(words), ',')) {
    LORRY_ASSIGN_OR_RETURN(const Role role, ParseRole(ToStd(word)));
    roles = roles | role;
  }
  return roles;
}

// Runs and uploads belong to names: this one stays when lines move. Eight digits of the hash of 128
// random bits tell nobody the token.
std::string NameOfUnnamed(std::string_view hash) {
  return absl::StrCat("token-", ToAbsl(hash.substr(0, 8)));
}

// What is left of a line after its token. False when it cannot be understood.
bool ReadRest(std::istringstream& words, Caller& caller) {
  for (std::string word; words >> word;) {
    if (word.starts_with(kAdapters)) {
      caller.adapters =
          absl::StrSplit(ToAbsl(std::string_view(word).substr(kAdapters.size())), ',');
      for (const std::string& adapter : caller.adapters) {
        if (adapter.empty() || adapter.find('*') < adapter.size() - 1) return false;
      }
    } else if (caller.name.empty()) {
      caller.name = word;
    } else {
      return false;
    }
  }
  return true;
}

// Whether the file's own time says that nobody has written to it for a while. One in the future, as
// the clock of another host may set it, says nothing.
bool IsOld(const std::string& path) {
  std::error_code error;
  const auto written = std::filesystem::last_write_time(path, error);
  return !error && std::filesystem::file_time_type::clock::now() - written > kWritingPause;
}

// `again`: a file that was read before may be caught while it is written in place. It may be empty
// yet, or, unless it is `settled`, end within a line, before the words that limit a token.
absl::StatusOr<std::map<std::string, Caller>> ReadTokens(const std::string& path, bool again,
                                                         bool settled) {
  std::ifstream file(path);
  if (!file) {
    return Error(absl::StatusCode::kFailedPrecondition, "",
                 absl::StrCat("the tokens file ", path, " cannot be read"));
  }
  std::map<std::string, Caller> callers;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    std::istringstream words(line.substr(0, line.find('#')));
    std::string roles_word, token;
    if (!(words >> roles_word)) continue;
    words >> token;
    Caller caller;
    const absl::StatusOr<Roles> roles = ParseRoles(roles_word);
    if (!roles.ok() || token.size() < kTokenBytesMin || !ReadRest(words, caller)) {
      return Error(absl::StatusCode::kInvalidArgument, "",
                   absl::StrCat(path, ":", number,
                                ": expected `<role>[,<role>] <token of 16 characters or more> "
                                "[name] [adapters=<adapter>,<prefix>*]`, roles reader, publisher, "
                                "engine, operator"));
    }
    caller.roles = *roles;
    const std::string hash = ToHex(HashSha256(token));
    if (caller.name.empty()) caller.name = NameOfUnnamed(hash);
    callers[hash] = std::move(caller);
    if (again && file.eof() && !settled) {
      return Error(absl::StatusCode::kInvalidArgument, "",
                   absl::StrCat(path, ":", number, ": ends within a line, and was just written"));
    }
  }
  if (again && callers.empty()) {
    return Error(absl::StatusCode::kInvalidArgument, "", absl::StrCat(path, " names no token"));
  }
  return callers;
}

Caller CallerOfCertificate(const grpc::AuthContext& peer) {
  Caller caller;
  for (const grpc::string_ref& uri : peer.FindPropertyValues("peer_uri")) {
    const std::string_view text(uri.data(), uri.size());
    const size_t at = text.rfind(kRoleUri);
    if (at == std::string_view::npos) continue;
    const absl::StatusOr<Role> role = ParseRole(text.substr(at + kRoleUri.size()));
    if (!role.ok()) continue;
    caller.roles = caller.roles | *role;
    caller.name = text;
  }
  return caller;
}

std::string BearerToken(const Access::Metadata& metadata) {
  const auto it = metadata.find("authorization");
  if (it == metadata.end()) return {};
  const std::string_view value(it->second.data(), it->second.size());
  return value.substr(0, kBearer.size()) == kBearer ? std::string(value.substr(kBearer.size()))
                                                    : std::string();
}

}  // namespace

absl::StatusOr<Role> ParseRole(std::string_view word) {
  for (const auto& [role, name] : kRoleWords) {
    if (word == name) return role;
  }
  return Error(absl::StatusCode::kInvalidArgument, "",
               absl::StrCat("no role is named \"", ToAbsl(word), "\""));
}

std::string ToString(Roles roles) {
  std::vector<std::string> words;
  for (const auto& [role, name] : kRoleWords) {
    if (roles.Has(role)) words.push_back(name);
  }
  return absl::StrJoin(words, ",");
}

absl::Status CheckTokensFile(const std::string& path) {
  return ReadTokens(path, /*again=*/true, /*settled=*/true).status();
}

absl::StatusOr<std::unique_ptr<Access>> Access::Open(std::string tokens_file, bool certificates) {
  std::unique_ptr<Access> access(new Access(std::move(tokens_file), certificates));
  MutexLock lock(access->mutex_);
  if (!access->tokens_file_.empty()) LORRY_RETURN_IF_ERROR(access->Reload());
  return access;
}

absl::Status Access::Reload() {
  const FileStamp stamp = StampOf(tokens_file_);
  if (stamp == tokens_stamp_ && stamp.exists()) return absl::OkStatus();
  const Tick now = SteadyClock().Now();
  if (stamp != seen_stamp_) seen_at_ = now;
  seen_stamp_ = stamp;
  const bool settled =
      std::chrono::milliseconds(now - seen_at_) > kWritingPause || IsOld(tokens_file_);
  LORRY_ASSIGN_OR_RETURN(auto callers,
                         ReadTokens(tokens_file_, /*again=*/tokens_stamp_.exists(), settled));
  if (tokens_stamp_.exists() && StampOf(tokens_file_) != stamp) {
    return Error(absl::StatusCode::kInvalidArgument, "",
                 absl::StrCat(tokens_file_, ": was written while it was read"));
  }
  callers_ = std::move(callers);
  tokens_stamp_ = stamp;
  for (const auto& [hash, caller] : callers_) {
    if (caller.name != NameOfUnnamed(hash) || !caller.roles.Has(Role::kPublisher)) continue;
    spdlog::warn(
        "{}: a publisher's line has no name: its runs belong to {}, and end when a line of another "
        "name replaces it",
        tokens_file_, caller.name);
  }
  return absl::OkStatus();
}

// A file that is half-written or gone for a moment must not lock everybody out: the old tokens
// stay. Whoever meant to take one back has to hear of it.
void Access::Look() {
  const absl::Status read = Reload();
  std::string complaint(read.message());
  if (complaint == complaint_) return;
  complaint_ = std::move(complaint);
  if (read.ok()) {
    spdlog::info("{} was read again", tokens_file_);
  } else {
    spdlog::error("{}; until that is mended the tokens that were read before stay valid",
                  complaint_);
  }
}

std::optional<Caller> Access::FindToken(const std::string& token) {
  // Looked up by hash, so that the time of a look-up tells nothing about tokens that exist.
  const std::string key = ToHex(HashSha256(token));
  MutexLock lock(mutex_);
  const int64_t now_ms = SteadyClock().Now();
  if (now_ms >= next_look_ms_) {
    next_look_ms_ = now_ms + kLookIntervalMs;
    Look();
  }
  const auto it = callers_.find(key);
  if (it == callers_.end()) return std::nullopt;
  return it->second;
}

bool Caller::MayTouch(std::string_view adapter) const {
  if (adapters.empty() || adapter == kOfCaller) return true;
  return std::any_of(adapters.begin(), adapters.end(), [&](std::string_view allowed) {
    if (!allowed.ends_with('*')) return adapter == allowed;
    allowed.remove_suffix(1);
    return !adapter.empty() && adapter.starts_with(allowed);
  });
}

absl::StatusOr<Caller> Access::Identify(const Metadata& metadata,
                                        const grpc::AuthContext& connection) {
  if (open_to_all()) return Caller{.name = "", .roles = Role::kOperator, .adapters = {}};
  Caller caller;
  if (certificates_) caller = CallerOfCertificate(connection);
  if (const std::string token = BearerToken(metadata); !tokens_file_.empty() && !token.empty()) {
    if (std::optional<Caller> known = FindToken(token)) caller = *std::move(known);
  }
  if (caller.roles.empty()) {
    return Error(absl::StatusCode::kUnauthenticated, "UNAUTHENTICATED",
                 "no known bearer token and no certificate with a role came with this call");
  }
  return caller;
}

absl::StatusOr<Caller> Access::Check(const grpc::ServerContextBase& context, Roles wanted,
                                     std::string_view adapter) {
  LORRY_ASSIGN_OR_RETURN(Caller caller,
                         Identify(context.client_metadata(), *context.auth_context()));
  if (!caller.roles.Permits(wanted)) {
    return Error(absl::StatusCode::kPermissionDenied, "ROLE_MISSING",
                 absl::StrCat(caller.name, " is ", ToString(caller.roles), "; this call needs ",
                              ToString(wanted)));
  }
  if (!caller.MayTouch(adapter)) {
    return Error(absl::StatusCode::kPermissionDenied, "ADAPTER_DENIED",
                 absl::StrCat(caller.name, " may touch only ", absl::StrJoin(caller.adapters, ", "),
                              adapter.empty() ? "; this call concerns every adapter"
                                              : absl::StrCat(", not ", ToAbsl(adapter))));
  }
  return caller;
}

}  // namespace lorry::rpc
