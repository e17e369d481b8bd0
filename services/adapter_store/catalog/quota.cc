// Which versions leave by themselves, so that a store has bounds, and room for the next upload.
//
// Two things make versions leave, the oldest first, and never one that an alias or a holder names or
// that was published to be kept. With every publish those beyond the newest `store_keep` leave. When
// a quota (the adapter's, or the store's limit) asks for room for an upload, more of this adapter
// leave, but not the newest few of the current run.
#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "lib/base/counted.h"
#include "lib/base/error.h"
#include "lib/base/strings.h"
#include "services/adapter_store/catalog/catalog.h"
#include "services/adapter_store/catalog/draft.h"
#include "services/adapter_store/catalog/keys.h"

namespace lorry::store {
namespace {

// Of one transaction, which takes some 1,000. A policy that bounds what was unbounded lets versions
// leave over several publishes, and a quota that was lowered over several transactions.
constexpr int kDroppedAtOnce = 500;

uint64_t OrUnlimited(uint64_t limit) {
  return limit == 0 ? std::numeric_limits<uint64_t>::max() : limit;
}

// What is taken, counting open uploads with their full length, and what may be.
struct Account {
  uint64_t adapter_bytes = 0, adapter_bytes_max = 0;
  uint64_t total_bytes = 0, total_bytes_max = 0;
  uint64_t versions = 0, versions_max = 0;

  bool Fits(uint64_t bytes) const {
    return adapter_bytes + bytes <= adapter_bytes_max && total_bytes + bytes <= total_bytes_max &&
           versions + 1 <= versions_max;
  }
  void Remove(const Version& version) {
    adapter_bytes -= version.image_bytes;
    total_bytes -= version.image_bytes;
    --versions;
  }
  std::string WhyNot(std::string_view adapter, uint64_t bytes) const {
    if (adapter_bytes + bytes > adapter_bytes_max) {
      return absl::StrCat(adapter_bytes, " bytes of ", ToAbsl(adapter), " + ", bytes,
                          " of this image > its quota of ", adapter_bytes_max);
    }
    if (total_bytes + bytes > total_bytes_max) {
      return absl::StrCat(total_bytes, " bytes in the store + ", bytes,
                          " of this image > its limit of ", total_bytes_max);
    }
    return absl::StrCat(Counted(versions, "version"), " of ", ToAbsl(adapter),
                        " + 1 > its quota of ", versions_max);
  }
};

}  // namespace

// Oldest first.
absl::StatusOr<std::vector<Version>> Catalog::Expendable(const Adapter& adapter) {
  LORRY_ASSIGN_OR_RETURN(std::vector<Version> versions,
                         ListRecords<Version>(store_, keys::VersionsOf(adapter.name)));
  LORRY_ASSIGN_OR_RETURN(const auto holds, Holds(adapter.name));
  size_t newest = 0;
  std::erase_if(versions, [&](const Version& version) {
    const bool kept = version.key.run == adapter.current_run && newest++ < kNewestKept;
    return kept || version.keep || holds.contains(version.key);
  });
  std::reverse(versions.begin(), versions.end());
  return versions;
}

// False: some of the versions that are to leave are on the draft, which is committed before the next
// of them.
absl::StatusOr<bool> Catalog::MakeRoom(Draft& draft, News& news, Adapter& adapter,
                                       const std::string& owner, const BeginUploadArgs& args) {
  LORRY_ASSIGN_OR_RETURN(const std::vector<Upload> open, ListOpenUploads());
  LORRY_ASSIGN_OR_RETURN(const uint64_t stored, draft.GetNumber(keys::kBytes));
  const Policy& policy = adapter.policy;
  Account account{.adapter_bytes = adapter.stored_bytes,
                  .adapter_bytes_max = OrUnlimited(
                      policy.quota_bytes != 0 ? policy.quota_bytes : options_.adapter_bytes_max),
                  .total_bytes = stored,
                  .total_bytes_max = OrUnlimited(options_.total_bytes_max),
                  .versions = adapter.versions,
                  .versions_max = OrUnlimited(policy.quota_versions)};
  size_t open_count = 0, own_count = 0;
  for (const Upload& upload : open) {
    // One that this call has just fenced is still listed; its room is free again.
    LORRY_ASSIGN_OR_RETURN(const auto still, draft.GetText(keys::OfOpenUpload(upload.id)));
    if (!still.has_value()) continue;
    ++open_count;
    if (upload.owner == owner) ++own_count;
    account.total_bytes += upload.image_bytes;
    if (upload.key.adapter != adapter.name) continue;
    account.adapter_bytes += upload.image_bytes;
    ++account.versions;
  }
  const size_t left = kOpenUploadsMax - std::min(open_count, kOpenUploadsMax);
  if (left == 0 || (!owner.empty() && own_count >= left)) {
    const std::string whose = left == 0 ? ""
                                        : absl::StrCat(", of them ", own_count, " of ", owner,
                                                       ", as many as are left for all others");
    return Error(
        absl::StatusCode::kResourceExhausted, "TOO_MANY_UPLOADS",
        absl::StrCat(open_count, " uploads are open", whose, "; commit or abort some, or wait"));
  }
  if (account.Fits(args.image_bytes)) return true;

  LORRY_ASSIGN_OR_RETURN(std::vector<Version> leaving, Expendable(adapter));
  size_t count = 0;
  while (count < leaving.size() && !account.Fits(args.image_bytes)) {
    account.Remove(leaving[count++]);
  }
  if (!account.Fits(args.image_bytes)) {
    return Error(absl::StatusCode::kResourceExhausted, "QUOTA_EXCEEDED",
                 absl::StrCat(account.WhyNot(adapter.name.value, args.image_bytes),
                              ", and what else is stored is held, kept or among the newest ",
                              kNewestKept, "; raise the quota, drop aliases or delete versions"));
  }
  leaving.resize(std::min<size_t>(count, kDroppedAtOnce));
  for (const Version& version : leaving) {
    LORRY_RETURN_IF_ERROR(Remove(draft, news, adapter, version));
    ++news.evicted;
  }
  return leaving.size() == count;
}

uint32_t Catalog::StoreKeepOf(const Adapter& adapter) const {
  return adapter.policy.store_keep.value_or(options_.store_keep);
}

// After a version was put on the draft: the lists still lack it.
absl::Status Catalog::DropOld(Draft& draft, News& news, Adapter& adapter) {
  const uint32_t keep = StoreKeepOf(adapter);
  if (keep == 0 || adapter.versions <= keep) return absl::OkStatus();
  // Every new hold writes one of these two, so that none slips in between.
  LORRY_RETURN_IF_ERROR(draft.GetNumber(keys::kHoldsStamp).status());
  LORRY_RETURN_IF_ERROR(draft.GetNumber(keys::kRevision).status());
  LORRY_ASSIGN_OR_RETURN(const std::vector<Version> older,
                         ListRecords<Version>(store_, keys::VersionsOf(adapter.name)));
  LORRY_ASSIGN_OR_RETURN(const auto holds, Holds(adapter.name));
  for (size_t i = older.size(); i >= keep && i > 0; --i) {
    const Version& version = older[i - 1];
    if (version.keep || holds.contains(version.key)) continue;
    LORRY_RETURN_IF_ERROR(Remove(draft, news, adapter, version));
    if (++news.evicted == kDroppedAtOnce) break;
  }
  return absl::OkStatus();
}

absl::StatusOr<Retention> Catalog::RetentionOf(const Adapter& adapter) {
  Retention retention{.store_keep = StoreKeepOf(adapter)};
  LORRY_ASSIGN_OR_RETURN(const std::vector<Version> versions,
                         ListRecords<Version>(store_, keys::VersionsOf(adapter.name)));
  LORRY_ASSIGN_OR_RETURN(const auto holds, Holds(adapter.name));
  for (const Version& version : versions) {
    const auto held = holds.find(version.key);
    if (retention.store_keep == 0 || retention.newest < retention.store_keep) {
      ++retention.newest;
    } else if (held != holds.end()) {
      ++(held->second.front().starts_with(kAliasHolder) ? retention.aliased : retention.held);
    } else {
      ++(version.keep ? retention.kept : retention.leaving);
    }
  }
  return retention;
}

}  // namespace lorry::store
