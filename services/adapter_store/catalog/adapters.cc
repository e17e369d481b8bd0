// Adapters: created, described, taken out of service, deleted.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lib/base/counted.h"
#include "lib/base/did_you_mean.h"
#include "lib/base/error.h"
#include "services/adapter_store/catalog/catalog.h"
#include "services/adapter_store/catalog/draft.h"
#include "services/adapter_store/catalog/keys.h"

namespace lorry::store {
namespace {

// For a suggestion: enough for people, cheap for a store of any size.
constexpr uint32_t kNamesCompared = 1'000;

// Versions that one transaction deletes, at some 600 bytes each and one for each of their aliases;
// also what else an adapter has left behind, at some 100 bytes.
constexpr size_t kDeletedAtOnce = 500;
constexpr size_t kHoldersNamed = 4;

Change AdapterChange(Change::Kind kind, const AdapterName& name) {
  return {.kind = kind, .key = VersionKey{.adapter = name, .run = {}, .number = {}}, .alias = {}};
}

}  // namespace

absl::StatusOr<Adapter> Catalog::NeedAdapter(Draft& draft, const AdapterName& name) {
  LORRY_ASSIGN_OR_RETURN(std::optional<Adapter> adapter, draft.Get<Adapter>(keys::OfAdapter(name)));
  if (!adapter.has_value()) return NoSuchAdapter(name);
  return *std::move(adapter);
}

// A new adapter goes on counting where an earlier one of its name ended.
absl::StatusOr<Adapter> Catalog::FindOrNew(Draft& draft, const AdapterName& name) {
  LORRY_ASSIGN_OR_RETURN(std::optional<Adapter> found, draft.Get<Adapter>(keys::OfAdapter(name)));
  if (found.has_value()) return *std::move(found);
  LORRY_ASSIGN_OR_RETURN(const std::optional<GoneAdapter> gone,
                         draft.Get<GoneAdapter>(keys::OfGoneAdapter(name)));
  Adapter adapter;
  adapter.name = name;
  if (gone.has_value()) {
    adapter.last_run = gone->last_run;
    adapter.generation = gone->generation;
  }
  return adapter;
}

absl::StatusOr<Adapter> Catalog::SetAdapter(const AdapterName& name, Policy policy,
                                            std::optional<uint64_t> expected_generation) {
  Adapter adapter;
  LORRY_RETURN_IF_ERROR(Transact([&](Draft& draft, News& news) -> absl::Status {
    LORRY_ASSIGN_OR_RETURN(const auto exists, draft.GetText(keys::OfAdapter(name)));
    LORRY_ASSIGN_OR_RETURN(adapter, FindOrNew(draft, name));
    const uint64_t seen = exists.has_value() ? adapter.generation : 0;
    if (expected_generation.has_value() && *expected_generation != seen) {
      // A repeated call, whose first answer was lost, finds what it did itself.
      if (*expected_generation == adapter.seen_before && adapter.policy == policy) {
        return absl::OkStatus();
      }
      return Error(absl::StatusCode::kAborted, "ADAPTER_MOVED",
                   absl::StrCat("the policy of ", name.value, " has generation ", seen, ", not ",
                                *expected_generation, "; read it again and decide again"));
    }
    LORRY_ASSIGN_OR_RETURN(const std::vector<Adapter> all,
                           ListRecords<Adapter>(store_, keys::kAdapters));
    for (const Adapter& other : all) {
      if (other.name == name) continue;
      for (const std::string& pool : policy.default_of) {
        const auto& taken = other.policy.default_of;
        if (std::find(taken.begin(), taken.end(), pool) == taken.end()) continue;
        return Error(absl::StatusCode::kInvalidArgument, "POLICY_INVALID",
                     absl::StrCat("requests of pool ", pool, " that name no adapter get ",
                                  other.name.value, "; set its no_adapter to REFUSE first"));
      }
    }
    adapter.policy = policy;
    ++adapter.generation;
    adapter.seen_before = seen;
    draft.Put(keys::OfAdapter(name), adapter);
    news.changes.push_back(AdapterChange(Change::Kind::kAdapterSet, name));
    return absl::OkStatus();
  }));
  return adapter;
}

absl::Status Catalog::CheckInService(const Adapter& adapter) {
  if (!adapter.archived) return absl::OkStatus();
  return Error(absl::StatusCode::kFailedPrecondition, "ADAPTER_ARCHIVED",
               absl::StrCat("adapter ", adapter.name.value,
                            " is archived; take it back into service, or publish another one"));
}

absl::StatusOr<Adapter> Catalog::ArchiveAdapter(const AdapterName& name, bool archived) {
  Adapter adapter;
  LORRY_RETURN_IF_ERROR(Transact([&](Draft& draft, News& news) -> absl::Status {
    LORRY_ASSIGN_OR_RETURN(adapter, NeedAdapter(draft, name));
    if (adapter.archived == archived) return absl::OkStatus();
    adapter.archived = archived;
    draft.Put(keys::OfAdapter(name), adapter);
    news.changes.push_back(AdapterChange(Change::Kind::kAdapterSet, name));
    return archived ? EndUploadsOf(draft, news, name, CheckInService(adapter)) : absl::OkStatus();
  }));
  return adapter;
}

absl::StatusOr<DeletedAdapter> Catalog::DeleteAdapter(const AdapterName& name, bool with_versions) {
  DeletedAdapter all;
  while (true) {
    DeletedAdapter now;
    bool done = false;
    LORRY_RETURN_IF_ERROR(Transact([&](Draft& draft, News& news) -> absl::Status {
      now = {};
      // Every new hold writes one of these two, so that none slips in between.
      LORRY_RETURN_IF_ERROR(draft.GetNumber(keys::kHoldsStamp).status());
      LORRY_RETURN_IF_ERROR(draft.GetNumber(keys::kRevision).status());
      // A repeated call, whose first answer was lost, finds what it did itself.
      LORRY_ASSIGN_OR_RETURN(const auto exists, draft.GetText(keys::OfAdapter(name)));
      LORRY_ASSIGN_OR_RETURN(const auto gone, draft.GetText(keys::OfGoneAdapter(name)));
      done = gone.has_value() && !exists.has_value();
      if (done) return absl::OkStatus();
      LORRY_ASSIGN_OR_RETURN(Adapter adapter, NeedAdapter(draft, name));
      LORRY_RETURN_IF_ERROR(CheckDeletable(adapter, with_versions));
      LORRY_ASSIGN_OR_RETURN(
          const std::vector<kv::Entry> some,
          store_.List({.prefix = keys::VersionsOf(name), .start = "", .limit = kDeletedAtOnce}));
      for (const kv::Entry& entry : some) {
        LORRY_ASSIGN_OR_RETURN(const Version version, Decode<Version>(entry.value));
        LORRY_RETURN_IF_ERROR(Remove(draft, news, adapter, version));
        ++now.versions;
        now.bytes += version.image_bytes;
      }
      if (!some.empty()) return absl::OkStatus();  // each leaves a tombstone, which goes next
      LORRY_ASSIGN_OR_RETURN(const size_t forgotten, ForgetSome(draft, name, kDeletedAtOnce));
      done = forgotten < kDeletedAtOnce;
      return done ? Forget(draft, news, adapter) : absl::OkStatus();
    }));
    all.versions += now.versions;
    all.bytes += now.bytes;
    if (done) return all;
  }
}

absl::Status Catalog::CheckDeletable(const Adapter& adapter, bool with_versions) {
  if (adapter.versions > 0 && !with_versions) {
    return Error(absl::StatusCode::kFailedPrecondition, "ADAPTER_NOT_EMPTY",
                 absl::StrCat(adapter.name.value, " has ", Counted(adapter.versions, "version"),
                              " stored; delete them first, or say that all of them go"));
  }
  // Its aliases go with it; others that hold a version must let go first.
  LORRY_ASSIGN_OR_RETURN(const std::vector<HolderSet> sets,
                         ListRecords<HolderSet>(store_, keys::kHolds));
  std::vector<std::string> holders;
  for (const HolderSet& set : sets) {
    for (const VersionKey& key : set.versions) {
      if (key.adapter == adapter.name && holders.size() < kHoldersNamed) {
        holders.push_back(absl::StrCat(set.holder, " (", ToString(key), ")"));
      }
    }
  }
  if (holders.empty()) return absl::OkStatus();
  return Error(absl::StatusCode::kFailedPrecondition, "IN_USE",
               absl::StrCat(adapter.name.value, " is held by ", absl::StrJoin(holders, ", "),
                            "; archive it, and delete it once engines have let it go"));
}

// What grows with each publish and run: how many entries of it go now.
absl::StatusOr<size_t> Catalog::ForgetSome(Draft& draft, const AdapterName& name, size_t limit) {
  size_t forgotten = 0;
  for (const std::string& prefix : {keys::AttemptsOf(name), keys::TombstonesOf(name),
                                    keys::RequestsOf(name), keys::RunsOf(name)}) {
    if (forgotten == limit) break;
    LORRY_ASSIGN_OR_RETURN(
        const std::vector<kv::Entry> some,
        store_.List({.prefix = prefix, .start = "", .limit = limit - forgotten}));
    for (const kv::Entry& entry : some) draft.Delete(entry.key);
    forgotten += some.size();
  }
  return forgotten;
}

// Deletes what is left of an adapter then.
absl::Status Catalog::Forget(Draft& draft, News& news, const Adapter& adapter) {
  const AdapterName& name = adapter.name;
  LORRY_RETURN_IF_ERROR(
      EndUploadsOf(draft, news, name,
                   Error(absl::StatusCode::kNotFound, "UNKNOWN_ADAPTER",
                         absl::StrCat("adapter ", name.value, " was deleted meanwhile"))));
  LORRY_ASSIGN_OR_RETURN(const std::vector<kv::Entry> aliases,
                         kv::ListAll(store_, keys::AliasesOf(name)));
  for (const kv::Entry& alias : aliases) draft.Delete(alias.key);
  draft.Delete(keys::OfAdapter(name));
  draft.Put(keys::OfGoneAdapter(name),
            GoneAdapter{.last_run = adapter.last_run, .generation = adapter.generation});
  news.changes.push_back(AdapterChange(Change::Kind::kAdapterDeleted, name));
  return absl::OkStatus();
}

absl::StatusOr<Adapter> Catalog::GetAdapter(const AdapterName& name) {
  Draft draft(store_);
  return NeedAdapter(draft, name);
}

absl::StatusOr<std::vector<Adapter>> Catalog::ListAdapters(std::string_view after, size_t limit) {
  // '\0' sorts before every byte of a name: the first key after that of `after`.
  const std::string start =
      after.empty() ? "" : keys::OfAdapter(AdapterName(std::string(after))) + '\0';
  LORRY_ASSIGN_OR_RETURN(const std::vector<kv::Entry> entries,
                         store_.List({.prefix = keys::kAdapters, .start = start, .limit = limit}));
  std::vector<Adapter> adapters;
  for (const kv::Entry& entry : entries) {
    LORRY_ASSIGN_OR_RETURN(Adapter adapter, Decode<Adapter>(entry.value));
    adapters.push_back(std::move(adapter));
  }
  return adapters;
}

absl::Status Catalog::NoSuchAdapter(const AdapterName& name) {
  LORRY_ASSIGN_OR_RETURN(const std::vector<Adapter> all, ListAdapters("", kNamesCompared));
  std::vector<std::string> names;
  for (const Adapter& adapter : all) names.push_back(adapter.name.value);
  return Error(absl::StatusCode::kNotFound, "UNKNOWN_ADAPTER",
               absl::StrCat("there is no adapter ", name.value, DidYouMean(name.value, names)));
}

}  // namespace lorry::store
