// Who may call what: a role per call, from a bearer token or a client certificate. Thread-safe,
// immutable but for the tokens, which are read again when their file changes. While that cannot be
// understood, which is logged, those of before stay valid.
//
// Tokens file: one `<role>[,<role>...] <token> [name] [adapters=<adapter>[,<adapter>...]]` a line,
// `#` begins a comment. A token with `adapters=` may make only calls that concern one of those
// adapters; `math-*` stands for all whose names begin so. A client certificate names its roles by
// URI subject alternative names ending in `/role/<role>`. With neither configured everybody is an
// operator: that is for loopback, and Server refuses it elsewhere unless told so.
#pragma once

#include <grpcpp/server_context.h>

#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/clock.h"
#include "lib/base/mutex.h"
#include "lib/rpc/file_stamp.h"

namespace lorry::rpc {

enum class Role : uint8_t { kReader = 1, kPublisher = 2, kEngine = 4, kOperator = 8 };

// A set of roles. As a requirement it means "any of these"; an operator satisfies every
// requirement, and whoever has any role satisfies kReader.
class Roles {
 public:
  constexpr Roles() = default;
  constexpr Roles(Role role)
      : bits_(static_cast<uint8_t>(role)) {}  // NOLINT: a role is a set of one
  constexpr Roles(std::initializer_list<Role> roles) {
    for (const Role role : roles) bits_ |= static_cast<uint8_t>(role);
  }
  constexpr bool Permits(Roles wanted) const {
    if (bits_ & static_cast<uint8_t>(Role::kOperator)) return true;
    if (bits_ != 0 && (wanted.bits_ & static_cast<uint8_t>(Role::kReader))) return true;
    return (bits_ & wanted.bits_) != 0;
  }
  constexpr bool Has(Role role) const { return (bits_ & static_cast<uint8_t>(role)) != 0; }
  constexpr bool empty() const { return bits_ == 0; }
  constexpr Roles operator|(Roles other) const {
    Roles both;
    both.bits_ = bits_ | other.bits_;
    return both;
  }

 private:
  uint8_t bits_ = 0;
};

absl::StatusOr<Role> ParseRole(std::string_view word);
std::string ToString(Roles roles);

struct Caller {
  std::string name;  // the token's or certificate's; empty where everybody may call
  Roles roles;
  std::vector<std::string> adapters;  // that it is limited to, `math-*` too; empty: all

  // An empty `adapter` stands for all of them.
  bool MayTouch(std::string_view adapter) const;
};

// What stands for an adapter in a call that concerns only what belongs to its caller, whom the
// handler checks.
inline constexpr std::string_view kOfCaller = "*";

// OK, or what is wrong with which line.
absl::Status CheckTokensFile(const std::string& path);

class Access {
 public:
  // `tokens_file` may be empty; `certificates` says that the server asks clients for certificates.
  static absl::StatusOr<std::unique_ptr<Access>> Open(std::string tokens_file, bool certificates);

  // UNAUTHENTICATED UNAUTHENTICATED without a known token or certificate; PERMISSION_DENIED
  // ROLE_MISSING when its roles do not suffice, ADAPTER_DENIED when it is limited to adapters and
  // `adapter` is none of them. The token itself is never logged or quoted.
  absl::StatusOr<Caller> Check(const grpc::ServerContextBase& context, Roles wanted,
                               std::string_view adapter);

  bool open_to_all() const { return tokens_file_.empty() && !certificates_; }

  // Who it is that came with this metadata over this connection, whatever the call.
  // UNAUTHENTICATED UNAUTHENTICATED when nobody that is known.
  using Metadata = std::multimap<grpc::string_ref, grpc::string_ref>;
  absl::StatusOr<Caller> Identify(const Metadata& metadata, const grpc::AuthContext& connection);

 private:
  Access(std::string tokens_file, bool certificates)
      : tokens_file_(std::move(tokens_file)), certificates_(certificates) {}
  absl::Status Reload() LORRY_REQUIRES(mutex_);
  void Look() LORRY_REQUIRES(mutex_);
  std::optional<Caller> FindToken(const std::string& token);

  const std::string tokens_file_;
  const bool certificates_;
  Mutex mutex_;
  FileStamp tokens_stamp_ LORRY_GUARDED_BY(mutex_);  // of what was read
  // Of what was looked at last, and since when it has lain there untouched.
  FileStamp seen_stamp_ LORRY_GUARDED_BY(mutex_);
  Tick seen_at_ LORRY_GUARDED_BY(mutex_) = 0;
  // What was said of a file that cannot be understood; empty: it can.
  std::string complaint_ LORRY_GUARDED_BY(mutex_);
  // The file's time is asked at most once a second.
  int64_t next_look_ms_ LORRY_GUARDED_BY(mutex_) = 0;
  std::map<std::string, Caller> callers_
      LORRY_GUARDED_BY(mutex_);  // by the token's SHA-256, in hex
};

}  // namespace lorry::rpc
