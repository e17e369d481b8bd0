// The names of things, as types that cannot be mixed up. Values are checked where they enter (rpc,
// door, CLI).
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"

namespace lorry {

// A string that names one kind of thing.
template <typename Tag>
struct StringId {
  std::string value;
  StringId() = default;
  explicit StringId(std::string v) : value(std::move(v)) {}
  bool empty() const { return value.empty(); }
  auto operator<=>(const StringId&) const = default;
};

// A number that counts one kind of thing.
template <typename Tag>
struct NumberId {
  uint64_t value = 0;
  constexpr NumberId() = default;
  constexpr explicit NumberId(uint64_t v) : value(v) {}
  auto operator<=>(const NumberId&) const = default;
};

// ^[a-z0-9][a-z0-9._-]{0,62}$, not ending in -v<digits>.
using AdapterName = StringId<struct AdapterNameTag>;
using PoolName = StringId<struct PoolNameTag>;  // the same alphabet
// The same alphabet; `latest`, `newest`, `base` are reserved.
using AliasName = StringId<struct AliasNameTag>;
// One engine and its proxy, stable over restarts of both.
using MemberId = StringId<struct MemberIdTag>;
// One life of a proxy's journal; a lost journal has another.
using JournalId = StringId<struct JournalIdTag>;
using BootId = StringId<struct BootIdTag>;  // one life of an engine process
// {adapter}-v{number}-{12 hex}: what an engine sees.
using EngineName = StringId<struct EngineNameTag>;

using RunId = NumberId<struct RunIdTag>;  // lineage of an adapter, counted from 1 by the store
using VersionNumber = NumberId<struct VersionNumberTag>;
using Epoch = NumberId<struct EpochTag>;  // decisions of one (adapter, pool), counted from 1
using Revision = NumberId<struct RevisionTag>;

// One leader's reign. Ordered: a proxy refuses anything lower than it has seen.
struct Term {
  uint64_t incarnation = 0;
  uint64_t term = 0;
  auto operator<=>(const Term&) const = default;
};

// (adapter, run, number): an immutable stored image with its config.
struct VersionKey {
  AdapterName adapter;
  RunId run;
  VersionNumber number;
  auto operator<=>(const VersionKey&) const = default;
};

// "policy r2.81": how people and logs write a version.
std::string ToString(const VersionKey& key);
std::string ToString(const Term& term);

// OK, or INVALID_ARGUMENT NAME_INVALID that says what is wrong with `name` and shows a name that
// would do.
absl::Status CheckName(std::string_view what, std::string_view name);
absl::Status CheckAdapterName(std::string_view name);

}  // namespace lorry
