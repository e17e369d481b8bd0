// Overrides: an operator's choice for a pool. A sync like any other; it restarts the lineage.
#include "absl/strings/str_cat.h"
#include "lib/base/error.h"
#include "services/sync_orchestrator/machine/sync.h"

namespace lorry::sync {
namespace {

absl::Status CheckOverride(const Core& core, const OverrideSet& event) {
  if (!core.store_known) {
    return Error(absl::StatusCode::kUnavailable, "STORE_UNKNOWN",
                 "the store was not read yet; retry");
  }
  const AdapterInfo* info = core.FindAdapter(event.adapter);
  if (info == nullptr || !info->policy.pools.contains(event.pool)) {
    return Error(absl::StatusCode::kNotFound, "UNKNOWN_ADAPTER",
                 absl::StrCat("no adapter ", event.adapter.value, " in pool ", event.pool.value));
  }
  if (!event.version.has_value()) return absl::OkStatus();
  if (event.version->adapter != event.adapter || core.FindVersion(*event.version) == nullptr) {
    return Error(absl::StatusCode::kNotFound, "VERSION_UNKNOWN",
                 absl::StrCat(ToString(*event.version), " is not stored"));
  }
  if (core.IsPoisoned(*event.version)) {
    return Error(
        absl::StatusCode::kFailedPrecondition, "POISONED",
        absl::StrCat("engines died of ", ToString(*event.version), "; publish another version"));
  }
  return absl::OkStatus();
}

}  // namespace

void HandleOverride(Core& core, const OverrideSet& event) {
  const absl::Status status = CheckOverride(core, event);
  if (!status.ok()) {
    core.replies.push_back(Reply{event.request, status, {}, {}});
    return;
  }
  const PoolId id{event.adapter, event.pool};
  Pool& pool = core.pools[id];
  if (pool.record.override_to != event.version) {
    pool.record.override_to = event.version;
    pool.retry_at = 0;
    pool.deaths = 0;
    core.SavePool(id, pool);
  }
  AdvanceSyncs(core);  // so that the answer can name the epoch
  Epoch epoch;
  if (event.version.has_value() && pool.sync.has_value() &&
      pool.sync->version.key == *event.version) {
    epoch = pool.sync->epoch;
  } else if (const Activation* committed = pool.committed();
             committed != nullptr && event.version == committed->version.key) {
    epoch = committed->epoch;
  }
  core.replies.push_back(Reply{event.request, absl::OkStatus(), {}, epoch});
}

}  // namespace lorry::sync
