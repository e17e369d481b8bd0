// Overrides: an operator's choice for a pool. A sync like any other; it restarts the lineage.
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/error.h"
#include "services/sync_orchestrator/machine/catalogue.h"
#include "services/sync_orchestrator/machine/keys.h"
#include "services/sync_orchestrator/machine/sync.h"
#include "services/sync_orchestrator/machine/verdicts.h"

namespace lorry::sync {
namespace {

absl::Status CheckOverride(const Core& core, const OverrideSet& event) {
  if (!core.store_known) {
    return Error(absl::StatusCode::kUnavailable, "STORE_UNKNOWN",
                 "the store was not read yet; retry");
  }
  if (core.FindPolicy({event.adapter, event.pool}) == nullptr) {
    return NoPool(core, {event.adapter, event.pool});
  }
  if (!event.version.has_value()) return absl::OkStatus();
  if (event.version->adapter != event.adapter || core.FindVersion(*event.version) == nullptr) {
    return Error(absl::StatusCode::kNotFound, "UNKNOWN_VERSION",
                 absl::StrCat(ToString(*event.version), " is not stored"));
  }
  const GroupVerdict* given_up = GivenUp(core, {event.adapter, event.pool}, *event.version);
  return given_up != nullptr ? StatusOf(*given_up, *event.version) : absl::OkStatus();
}

// What the same request was answered before; null when it is new.
const OverrideResult* Remembered(const Core& core, const OverrideSet& event) {
  const auto pool = core.pools.find({event.adapter, event.pool});
  if (event.request_id.empty() || pool == core.pools.end()) return nullptr;
  for (const OverrideResult& result : pool->second.requests.overrides) {
    if (result.request_id == event.request_id) return &result;
  }
  return nullptr;
}

void Remember(Core& core, const PoolId& id, Pool& pool, const OverrideSet& event, Epoch epoch) {
  if (event.request_id.empty()) return;
  std::vector<OverrideResult>& overrides = pool.requests.overrides;
  overrides.push_back({event.request_id, event.version, epoch});
  if (overrides.size() > kRequestsLimit) overrides.erase(overrides.begin());
  core.Save(RequestsKey(id.adapter, id.pool), pool.requests);
}

}  // namespace

void HandleOverride(Core& core, const OverrideSet& event) {
  const auto answer = [&](absl::Status status, Epoch epoch = Epoch()) {
    core.replies.push_back(Reply{event.request, std::move(status), {}, epoch});
  };
  if (const OverrideResult* before = Remembered(core, event)) {
    if (before->version == event.version) return answer(absl::OkStatus(), before->epoch);
    return answer(Error(absl::StatusCode::kInvalidArgument, "REQUEST_ID_REUSED",
                        "this request_id set another version; choose a fresh one"));
  }
  absl::Status status = CheckOverride(core, event);
  if (!status.ok()) return answer(std::move(status));
  const PoolId id{event.adapter, event.pool};
  Pool& pool = core.PoolOf(id);
  if (pool.record.override_to != event.version) {
    pool.record.override_to = event.version;
    pool.retry_at = 0;
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
  Remember(core, id, pool, event, epoch);
  answer(absl::OkStatus(), epoch);
}

}  // namespace lorry::sync
