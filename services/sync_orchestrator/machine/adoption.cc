#include "services/sync_orchestrator/machine/adoption.h"

#include "absl/strings/str_cat.h"
#include "lib/base/error.h"
#include "services/sync_orchestrator/machine/keys.h"

namespace lorry::sync {
namespace {

void Settle(Core& core) {
  core.meta.settled = true;
  core.Save(MetaKey(), core.meta);
}

// Any OPEN(epoch) means that epoch was committed.
void AdoptRow(Core& core, const Member& member, const fleet::ObservedRow& row) {
  const PoolId id{row.adapter, member.record.pool};
  const auto named = core.named.find(row.target);
  const VersionInfo* version =
      named != core.named.end() ? core.FindVersion(*named->second.rbegin()) : nullptr;
  if (version == nullptr) return;
  Pool& pool = core.pools[id];
  if (pool.committed() != nullptr && pool.committed()->epoch >= row.epoch) return;
  pool.record.epoch = std::max(pool.record.epoch, row.epoch);
  pool.record.history = {{row.epoch, *version}};
  if (!pool.record.considered.has_value() || *pool.record.considered < version->key) {
    pool.record.considered = version->key;
  }
  std::erase_if(pool.record.pending, [&](const VersionKey& key) { return key <= version->key; });
  core.SavePool(id, pool);
}

uint64_t HighestIncarnationSeen(const Core& core) {
  uint64_t highest = 0;
  for (const auto& [id, member] : core.members) {
    if (member.observed.has_value()) highest = std::max(highest, member.observed->term.incarnation);
  }
  return highest;
}

}  // namespace

bool AdoptionNeeded(const Core& core) {
  if (core.meta.settled) return false;
  for (const auto& [id, member] : core.members) {
    if (!member.observed.has_value()) continue;
    const uint64_t theirs = member.observed->term.incarnation;
    if (theirs != 0 && theirs != core.meta.term.incarnation) return true;
  }
  return false;
}

void HandleAdopted(Core& core, const FleetAdopted& event) {
  const auto answer = [&](absl::Status status) {
    core.replies.push_back(Reply{event.request, std::move(status), {}, {}});
  };
  if (core.meta.settled) {
    return answer(Error(absl::StatusCode::kFailedPrecondition, "NOT_ADOPTABLE",
                        "this orchestrator has its records; there is nothing to adopt"));
  }
  if (!core.store_known) {
    return answer(Error(absl::StatusCode::kFailedPrecondition, "STORE_UNKNOWN",
                        "the store was not read yet; retry when it answers"));
  }
  // Proxies refuse a lower incarnation, and what they remember of an equal one was decided by
  // records that are gone. The clock that gave this one may have been behind, or the same.
  const uint64_t highest = HighestIncarnationSeen(core);
  if (highest >= core.meta.term.incarnation && AdoptionNeeded(core)) {
    if (highest + 1 >= kIncarnationLimit) {
      return answer(Error(absl::StatusCode::kFailedPrecondition, "TERM_FENCED",
                          absl::StrCat("a member reports incarnation ", highest,
                                       ", and none above it can be had: that member's journal is "
                                       "damaged; remove its data directory and restart it")));
    }
    core.meta.term = Term{highest + 1, 1};
  }
  for (const auto& [key, version] : core.versions) {
    for (const auto kind : {fleet::EngineKind::kSglang, fleet::EngineKind::kVllm})
      core.NameOf(version, kind);
  }
  for (const auto& [id, member] : core.members) {
    if (!member.observed.has_value()) continue;
    for (const fleet::ObservedRow& row : member.observed->rows) {
      if (row.mode != fleet::RowMode::kClosed && !row.target.empty()) AdoptRow(core, member, row);
    }
  }
  Settle(core);
  answer(absl::OkStatus());
}

void AdvanceAdoption(Core& core) {
  if (core.meta.settled || !core.store_known || AdoptionNeeded(core)) return;
  // An empty store has no decision behind it. Otherwise members get time to attach and say what
  // they remember.
  if (core.versions.empty() || core.now >= core.began_at + core.config.lost_after_ms) Settle(core);
}

std::optional<Tick> AdoptionWakeAt(const Core& core) {
  if (core.meta.settled) return std::nullopt;
  return core.began_at + core.config.lost_after_ms;
}

}  // namespace lorry::sync
