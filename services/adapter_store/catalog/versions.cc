// Stored versions: found, listed, deleted.
#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "lib/base/error.h"
#include "services/adapter_store/catalog/catalog.h"
#include "services/adapter_store/catalog/draft.h"
#include "services/adapter_store/catalog/keys.h"

namespace lorry::store {
namespace {

constexpr size_t kNeighboursNamed = 4;

uint64_t Distance(VersionNumber a, VersionNumber b) {
  return a < b ? b.value - a.value : a.value - b.value;
}

}  // namespace

absl::StatusOr<VersionKey> Catalog::Resolve(VersionKey key) {
  if (key.run.value != 0) return key;
  LORRY_ASSIGN_OR_RETURN(const Adapter adapter, GetAdapter(key.adapter));
  key.run = adapter.current_run;
  return key;
}

absl::StatusOr<Version> Catalog::GetVersion(const VersionKey& asked) {
  LORRY_ASSIGN_OR_RETURN(const VersionKey key, Resolve(asked));
  LORRY_ASSIGN_OR_RETURN(std::optional<Version> version,
                         Find<Version>(store_, keys::OfVersion(key)));
  if (!version.has_value()) return NoSuchVersion(key);
  return *std::move(version);
}

absl::Status Catalog::NoSuchVersion(const VersionKey& key) {
  LORRY_RETURN_IF_ERROR(GetAdapter(key.adapter).status());
  LORRY_ASSIGN_OR_RETURN(const std::optional<Tombstone> tombstone,
                         Find<Tombstone>(store_, keys::OfTombstone(key)));
  std::vector<VersionKey> all;
  LORRY_RETURN_IF_ERROR(ForEach(store_, keys::VersionsOf(key.adapter), "",
                                [&](const kv::Entry& entry) -> absl::StatusOr<bool> {
                                  LORRY_ASSIGN_OR_RETURN(const Version version,
                                                         Decode<Version>(entry.value));
                                  all.push_back(version.key);
                                  return all.size() < 1000;
                                }));
  // Of the same run first, then by how far the number is.
  std::stable_sort(all.begin(), all.end(), [&](const VersionKey& a, const VersionKey& b) {
    const bool a_run = a.run == key.run, b_run = b.run == key.run;
    if (a_run != b_run) return a_run;
    return Distance(a.number, key.number) < Distance(b.number, key.number);
  });
  all.resize(std::min(all.size(), kNeighboursNamed));
  const auto name = [](std::string* out, const VersionKey& k) { out->append(ToString(k)); };
  return Error(
      absl::StatusCode::kNotFound, "UNKNOWN_VERSION",
      absl::StrCat(ToString(key), tombstone.has_value() ? " was deleted" : " is not stored",
                   all.empty() ? "; no version is"
                               : absl::StrCat("; nearest: ", absl::StrJoin(all, ", ", name))));
}

absl::StatusOr<Page> Catalog::ListVersions(const AdapterName& adapter, RunId run, size_t limit,
                                           const std::string& page_token) {
  LORRY_RETURN_IF_ERROR(GetAdapter(adapter).status());
  const std::string all = keys::VersionsOf(adapter);
  const std::string prefix = run.value == 0 ? all : keys::VersionsOf(adapter, run);
  // The token is the last key's path below the adapter.
  const std::string start = page_token.empty() ? "" : absl::StrCat(all, page_token) + '\0';
  if (!page_token.empty() && start.compare(0, prefix.size(), prefix) != 0) {
    return Error(absl::StatusCode::kInvalidArgument, "ARGUMENT_INVALID",
                 "page_token is not from a listing with the same adapter and run");
  }
  LORRY_ASSIGN_OR_RETURN(const std::vector<kv::Entry> entries,
                         store_.List({.prefix = prefix, .start = start, .limit = limit}));
  Page page;
  for (const kv::Entry& entry : entries) {
    LORRY_ASSIGN_OR_RETURN(Version version, Decode<Version>(entry.value));
    page.versions.push_back(std::move(version));
  }
  if (entries.size() == limit) page.next = entries.back().key.substr(all.size());
  return page;
}

absl::StatusOr<std::vector<std::string>> Catalog::HoldersOf(const VersionKey& asked) {
  LORRY_ASSIGN_OR_RETURN(const VersionKey key, Resolve(asked));
  LORRY_ASSIGN_OR_RETURN(const auto holds, Holds(key.adapter));
  const auto found = holds.find(key);
  return found == holds.end() ? std::vector<std::string>() : found->second;
}

absl::Status Catalog::DeleteVersion(const VersionKey& key) {
  return Transact([&](Draft& draft, News& news) -> absl::Status {
    // Every new hold writes one of these two, so that none slips in between.
    LORRY_RETURN_IF_ERROR(draft.GetNumber(keys::kHoldsStamp).status());
    LORRY_RETURN_IF_ERROR(draft.GetNumber(keys::kRevision).status());
    LORRY_ASSIGN_OR_RETURN(Adapter adapter, NeedAdapter(draft, key.adapter));
    LORRY_ASSIGN_OR_RETURN(const std::optional<Version> version,
                           draft.Get<Version>(keys::OfVersion(key)));
    if (!version.has_value()) {
      // The retry of a delete that succeeded is a success.
      LORRY_ASSIGN_OR_RETURN(const auto gone, draft.GetText(keys::OfTombstone(key)));
      return gone.has_value() ? absl::OkStatus() : NoSuchVersion(key);
    }
    LORRY_ASSIGN_OR_RETURN(const auto holds, Holds(key.adapter));
    if (const auto held = holds.find(key); held != holds.end()) {
      return Error(absl::StatusCode::kFailedPrecondition, "IN_USE",
                   absl::StrCat(ToString(key), " is held by ", absl::StrJoin(held->second, ", "),
                                "; move the alias, or wait until it is no longer served"));
    }
    return Remove(draft, news, adapter, *version);
  });
}

absl::Status Catalog::Remove(Draft& draft, News& news, Adapter& adapter, const Version& version) {
  draft.Delete(keys::OfVersion(version.key));
  draft.Put(keys::OfTombstone(version.key),
            Tombstone{.digest = version.digest, .deleted_at_ms = options_.now_unix_ms()});
  // Tickets that were given out still name the image.
  LORRY_RETURN_IF_ERROR(RetireBlob(draft, version.blob, options_.ticket_life_ms));
  adapter.stored_bytes -= std::min(adapter.stored_bytes, version.image_bytes);
  adapter.versions -= std::min<uint32_t>(adapter.versions, 1);
  draft.Put(keys::OfAdapter(adapter.name), adapter);
  LORRY_ASSIGN_OR_RETURN(const uint64_t bytes, draft.GetNumber(keys::kBytes));
  LORRY_ASSIGN_OR_RETURN(const uint64_t count, draft.GetNumber(keys::kVersionCount));
  draft.PutNumber(keys::kBytes, bytes - std::min(bytes, version.image_bytes));
  draft.PutNumber(keys::kVersionCount, count - std::min<uint64_t>(count, 1));
  news.changes.push_back({.kind = Change::Kind::kVersionDeleted, .key = version.key, .alias = {}});
  return absl::OkStatus();
}

}  // namespace lorry::store
