// Who needs which version: aliases and holder sets.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "lib/base/error.h"
#include "lib/base/strings.h"
#include "lib/fleet/held.h"
#include "services/adapter_store/catalog/catalog.h"
#include "services/adapter_store/catalog/draft.h"
#include "services/adapter_store/catalog/keys.h"

namespace lorry::store {
namespace {

absl::Status CheckHolder(std::string_view holder) {
  const bool printable = std::all_of(holder.begin(), holder.end(),
                                     [](char c) { return c > ' ' && c <= '~' && c != '/'; });
  if (!holder.empty() && holder.size() <= kHolderBytesMax && printable) return absl::OkStatus();
  return Error(absl::StatusCode::kInvalidArgument, "NAME_INVALID",
               "holder must be 1 to 128 printable characters without / and spaces, for instance "
               "\"orchestrator:prod\"");
}

}  // namespace

absl::StatusOr<std::map<VersionKey, std::vector<std::string>>> Catalog::Holds(
    const AdapterName& adapter) {
  std::map<VersionKey, std::vector<std::string>> holds;
  LORRY_ASSIGN_OR_RETURN(const std::vector<Alias> aliases, ListAliases(adapter));
  for (const Alias& alias : aliases) {
    holds[*alias.version].push_back(absl::StrCat(ToAbsl(kAliasHolder), alias.name.value));
  }
  LORRY_ASSIGN_OR_RETURN(const std::vector<HolderSet> sets,
                         ListRecords<HolderSet>(store_, keys::kHolds));
  for (const HolderSet& set : sets) {
    for (const VersionKey& key : set.versions) {
      if (key.adapter == adapter) holds[key].push_back(set.holder);
    }
  }
  return holds;
}

absl::StatusOr<Alias> Catalog::GetAlias(const AdapterName& adapter, const AliasName& name) {
  LORRY_ASSIGN_OR_RETURN(std::optional<Alias> alias,
                         Find<Alias>(store_, keys::OfAlias(adapter, name)));
  if (!alias.has_value()) {
    return absl::NotFoundError(absl::StrCat(adapter.value, " has no alias ", name.value));
  }
  return *std::move(alias);
}

absl::StatusOr<std::vector<Alias>> Catalog::ListAliases(const AdapterName& adapter) {
  LORRY_ASSIGN_OR_RETURN(std::vector<Alias> aliases,
                         ListRecords<Alias>(store_, keys::AliasesOf(adapter)));
  std::erase_if(aliases, [](const Alias& alias) { return !alias.version.has_value(); });
  return aliases;
}

absl::StatusOr<Alias> Catalog::SetAlias(const AdapterName& adapter, const AliasName& name,
                                        std::optional<VersionKey> version,
                                        std::optional<uint64_t> expected_generation) {
  if (version.has_value()) {
    if (version->adapter != adapter) {
      return Error(absl::StatusCode::kInvalidArgument, "ARGUMENT_INVALID",
                   "an alias names a version of its own adapter");
    }
    LORRY_ASSIGN_OR_RETURN(version, Resolve(*version));
  }
  Alias alias;
  LORRY_RETURN_IF_ERROR(Transact([&](Draft& draft, News& news) -> absl::Status {
    LORRY_RETURN_IF_ERROR(NeedAdapter(draft, adapter).status());
    LORRY_ASSIGN_OR_RETURN(std::optional<Alias> found,
                           draft.Get<Alias>(keys::OfAlias(adapter, name)));
    const bool known = found.has_value();
    alias = found.value_or(Alias{.adapter = adapter, .name = name});
    const uint64_t seen = alias.version.has_value() ? alias.generation : 0;
    // A repeated call, whose first answer was lost, finds what it did itself.
    const bool done = alias.version == version && expected_generation == alias.seen_before;
    if (expected_generation.has_value() && *expected_generation != seen && !done) {
      return Error(
          absl::StatusCode::kAborted, "ALIAS_MOVED",
          absl::StrCat(adapter.value, "@", name.value,
                       alias.version.has_value() ? absl::StrCat(" is at ", ToString(*alias.version),
                                                                ", generation ", alias.generation)
                                                 : std::string(" does not exist (generation 0)"),
                       ", not at generation ", *expected_generation,
                       "; read it again and decide again"));
    }
    // It names this version already, or is gone already.
    if (alias.version == version) return absl::OkStatus();
    if (version.has_value()) {
      LORRY_ASSIGN_OR_RETURN(const auto stored, draft.GetText(keys::OfVersion(*version)));
      if (!stored.has_value()) return NoSuchVersion(*version);
    }
    if (!known) {
      LORRY_ASSIGN_OR_RETURN(const std::vector<kv::Entry> all,
                             kv::ListAll(store_, keys::AliasesOf(adapter)));
      if (all.size() >= kAliasesMax) {
        return Error(absl::StatusCode::kResourceExhausted, "TOO_MANY_ALIASES",
                     absl::StrCat(adapter.value, " has had ", all.size(),
                                  " alias names; use one of them again"));
      }
    }
    alias.version = version;
    ++alias.generation;
    alias.seen_before = seen;
    draft.Put(keys::OfAlias(adapter, name), alias);
    news.changes.push_back({.kind = Change::Kind::kAliasSet,
                            .key = VersionKey{.adapter = adapter, .run = {}, .number = {}},
                            .alias = name});
    return absl::OkStatus();
  }));
  return alias;
}

absl::StatusOr<std::optional<HolderMark>> Catalog::Remembered(std::string_view holder) {
  LORRY_ASSIGN_OR_RETURN(const std::optional<HolderSet> set,
                         Find<HolderSet>(store_, keys::OfHolder(holder)));
  return set.has_value() ? std::optional(set->mark) : std::nullopt;
}

absl::StatusOr<std::vector<VersionKey>> Catalog::SetHolds(const std::string& holder,
                                                          HolderMark mark,
                                                          std::vector<VersionKey> versions) {
  LORRY_RETURN_IF_ERROR(CheckHolder(holder));
  if (versions.size() > fleet::kHeldVersionsMax) {
    return Error(absl::StatusCode::kResourceExhausted, "TOO_MANY_HOLDS",
                 absl::StrCat(holder, " asks to hold ", versions.size(), " versions; at most ",
                              fleet::kHeldVersionsMax, " may be"));
  }
  for (VersionKey& key : versions) {
    LORRY_ASSIGN_OR_RETURN(key, Resolve(key));
  }
  std::sort(versions.begin(), versions.end());
  versions.erase(std::unique(versions.begin(), versions.end()), versions.end());

  std::vector<VersionKey> missing;
  LORRY_RETURN_IF_ERROR(Transact([&](Draft& draft, News&) -> absl::Status {
    missing.clear();
    LORRY_ASSIGN_OR_RETURN(const std::optional<HolderSet> before,
                           draft.Get<HolderSet>(keys::OfHolder(holder)));
    HolderSet set{.holder = holder, .mark = mark, .versions = {}};
    for (const VersionKey& key : versions) {
      LORRY_ASSIGN_OR_RETURN(const auto stored, draft.GetText(keys::OfVersion(key)));
      (stored.has_value() ? set.versions : missing).push_back(key);
    }
    if (before.has_value() && (before->mark > mark || (before->mark == mark && *before != set))) {
      return Error(absl::StatusCode::kAborted, "HOLDS_STALE",
                   absl::StrCat("the holds of ", holder, " have revision ", before->mark.revision,
                                " of incarnation ", before->mark.incarnation,
                                " already; send a higher one than ", mark.revision, " of ",
                                mark.incarnation));
    }
    if (before.has_value() && *before == set) return absl::OkStatus();
    if (!before.has_value()) {
      LORRY_ASSIGN_OR_RETURN(const std::vector<kv::Entry> all, kv::ListAll(store_, keys::kHolds));
      if (all.size() >= kHoldersMax) {
        return Error(absl::StatusCode::kResourceExhausted, "TOO_MANY_HOLDERS",
                     absl::StrCat(all.size(), " holders are known; at most that many may be"));
      }
    }
    LORRY_ASSIGN_OR_RETURN(const uint64_t stamp, draft.GetNumber(keys::kHoldsStamp));
    draft.PutNumber(keys::kHoldsStamp, stamp + 1);
    draft.Put(keys::OfHolder(holder), set);
    return absl::OkStatus();
  }));
  return missing;
}

}  // namespace lorry::store
