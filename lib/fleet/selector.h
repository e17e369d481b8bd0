// How people, clients and logs write which version of an adapter they mean: the one reading of it,
// for doors, the orchestrator, the store and the command line. Pure functions, any thread.
//
//   policy  policy@latest       the pool's last decision
//   policy@newest               the newest stored
//   policy@12  policy@v12  policy-v12        number 12 of the current run
//   policy@r2.12  policy r2.12  number 12 of run 2; the second is what logs print
//   policy@eval                 an alias
//   @base  policy@base          no adapter at all, where policy allows it
//
// Each text has one reading: adapter names may not end in -v<digits>, and CheckAliasName keeps
// aliases from looking like anything else. No text names a digest; engine names
// (`policy-v12-0123456789ab`) are names, looked up before a text is read as a selector.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "lib/base/ids.h"

namespace lorry::fleet {

struct Selector {
  enum class Kind { kLatest, kNewest, kAlias, kNumber, kVersion, kBase };
  AdapterName adapter;  // empty for a bare `@base`, and as ParseVersion returns it
  Kind kind = Kind::kLatest;
  AliasName alias;       // kAlias
  RunId run;             // kVersion
  VersionNumber number;  // kNumber (in the current run), kVersion
  bool operator==(const Selector&) const = default;
};

// INVALID_ARGUMENT NAME_INVALID, whose message says what to write instead.
absl::StatusOr<Selector> ParseSelector(std::string_view text);

// What stands behind the @, alone: "12", "v12", "r2.12", "latest", "newest", "eval". NAME_INVALID,
// also for "base", which is no version.
absl::StatusOr<Selector> ParseVersion(std::string_view text);

// The shortest spelling; ParseSelector reads it back.
std::string ToString(const Selector& selector);

// OK, or NAME_INVALID for an alias that breaks the rule for names or reads as something else.
absl::Status CheckAliasName(std::string_view name);

}  // namespace lorry::fleet
