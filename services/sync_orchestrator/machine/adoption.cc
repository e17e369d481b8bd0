#include "services/sync_orchestrator/machine/adoption.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/base/a_few.h"
#include "lib/base/error.h"
#include "services/sync_orchestrator/machine/catalogue.h"
#include "services/sync_orchestrator/machine/keys.h"
#include "services/sync_orchestrator/machine/roster.h"

namespace lorry::sync {
namespace {

// --- what is remembered

uint64_t HighestIncarnationSeen(const Core& core) {
  uint64_t highest = core.remembered.has_value() ? core.remembered->incarnation : 0;
  for (const auto& [id, member] : core.members) {
    if (member.observed.has_value()) highest = std::max(highest, member.observed->term.incarnation);
  }
  return highest;
}

Footing Judge(const Core& core) {
  if (!core.store_known) return Footing::kUnread;
  const uint64_t incarnation = core.meta.term.incarnation;
  switch (core.meta.worth) {
    case Worth::kLost:
      return Footing::kRecordsLost;
    case Worth::kNew:
      // An orchestrator that nobody has ever heard of has lost nothing, whatever is stored.
      return core.remembered.has_value() || HighestIncarnationSeen(core) >= incarnation
                 ? Footing::kRecordsLost
                 : Footing::kSettled;
    case Worth::kSettled:
      break;
  }
  const HoldsMark remembered = core.remembered.value_or(HoldsMark{});
  if (remembered > HoldsMark{incarnation, core.holds_record.sent}) return Footing::kRecordsLost;
  const bool was_acked = core.holds_record.acked.value != 0;
  if (was_acked && remembered < HoldsMark{incarnation, core.holds_record.acked})
    return Footing::kStoreLost;
  return Footing::kSettled;
}

bool IsLoss(Footing footing) {
  return footing == Footing::kRecordsLost || footing == Footing::kStoreLost;
}

// --- what is adopted

// How late a decision was made: epochs count within an incarnation.
struct Age {
  uint64_t incarnation = 0;
  Epoch epoch;
  auto operator<=>(const Age&) const = default;
};
struct Found {
  Age age;
  Activation activation;
  Epoch highest;  // of all epochs that anybody knows of the pool
};

// Epoch 0 stands for a decision of an earlier incarnation.
Age AgeOf(const fleet::ObservedRow& row) {
  if (row.epoch.value != 0) return {row.incarnation, row.epoch};
  return {row.incarnation > 0 ? row.incarnation - 1 : 0, Epoch()};
}

const VersionInfo* VersionNamed(const Core& core, const EngineName& name) {
  const auto named = core.named.find(name);
  return named != core.named.end() ? core.FindVersion(named->second) : nullptr;
}

// The last decision on each pool that the records or a member's door know: a row that was ever open
// on a target, and has it still, means that this was committed.
std::map<PoolId, Found> LastDecisions(const Core& core) {
  std::map<PoolId, Found> found;
  for (const auto& [id, pool] : core.pools) {
    if (const Activation* committed = pool.committed())
      found[id] = {{core.meta.term.incarnation, committed->epoch}, *committed, pool.record.epoch};
  }
  for (const auto& [member_id, member] : core.members) {
    if (!member.observed.has_value()) continue;
    for (const fleet::ObservedRow& row : member.observed->rows) {
      const VersionInfo* version = VersionNamed(core, row.target);
      if (version == nullptr) continue;
      const Age age = AgeOf(row);
      const auto [it, is_first] = found.try_emplace({row.adapter, member.record.pool},
                                                    Found{age, {row.epoch, *version}, Epoch()});
      it->second.highest = std::max({it->second.highest, row.epoch, row.barrier});
      if (is_first || age <= it->second.age) continue;
      it->second.age = age;
      it->second.activation = {row.epoch, *version};
    }
  }
  return found;
}

// --- why it is not adopted yet

// A decision that only an absent door knows would be forgotten, and the door would fall back behind
// it. Records that are gone do not even name that door, so every door has the same time to attach.
std::string WhoMayStillAttach(const Core& core) {
  if (core.footing != Footing::kRecordsLost) return "";
  std::string words;
  if (core.now < GatheredAt(core)) {
    words = absl::StrCat("engines that the records do not know have another ",
                         GatheredAt(core) - core.now, " ms to attach");
  }
  if (core.expected.empty()) return words;
  std::vector<std::string> named;
  for (const MemberId& id : core.expected) named.push_back(id.value);
  return absl::StrCat("not attached: ", AFew(named), words.empty() ? "" : "; ", words);
}

// A door that is LOCKED serves nobody before it learns whether its epoch was committed, which any
// other door of the pool may know.
std::string WhoIsInDoubt(const Core& core) {
  std::vector<std::string> locked, missing;
  for (const auto& [id, member] : core.members) {
    if (member.record.dead) continue;
    if (!member.session.has_value()) missing.push_back(id.value);
    if (!member.observed.has_value()) continue;
    for (const fleet::ObservedRow& row : member.observed->rows) {
      if (row.mode == fleet::RowMode::kLocked)
        locked.push_back(absl::StrCat(id.value, " (", row.adapter.value, ")"));
    }
  }
  if (locked.empty() || missing.empty()) return "";
  return absl::StrCat("doors are locked for a decision that these may know: ", AFew(missing),
                      "; attach them, or declare them dead. Locked are: ", AFew(locked));
}

// Pools whose doors serve something else than what is published newest: pinned, or not yet synced,
// and nobody remembers which.
std::string WhatMayBePinned(const Core& core, const std::map<PoolId, Found>& found) {
  std::vector<std::string> pools;
  for (const auto& [id, last] : found) {
    const AdapterInfo* info = core.FindAdapter(id.adapter);
    const VersionInfo* newest = NewestOf(core, id.adapter);
    if (info == nullptr || newest == nullptr) continue;
    const auto source = info->policy.pools.find(id.pool);
    const auto pool = core.pools.find(id);
    const bool is_pinned = pool != core.pools.end() && pool->second.record.override_to.has_value();
    if (source == info->policy.pools.end() || is_pinned ||
        source->second.kind != fleet::PoolSource::Kind::kPublished ||
        newest->key == last.activation.version.key) {
      continue;
    }
    pools.push_back(absl::StrCat("pool ", id.pool.value, " serves ",
                                 ToString(last.activation.version.key), " and ",
                                 ToString(newest->key), " is the newest"));
  }
  return AFew(pools);
}

absl::Status WhyNotAdopted(const Core& core, const FleetAdopted& event,
                           const std::map<PoolId, Found>& found) {
  if (HighestIncarnationSeen(core) == std::numeric_limits<uint64_t>::max()) {
    return Error(absl::StatusCode::kFailedPrecondition, "TERM_FENCED",
                 "a member reports the last incarnation that there can be: its journal is damaged; "
                 "remove its data directory and restart it");
  }
  if (const std::string absent = WhoMayStillAttach(core); !absent.empty()) {
    return Error(absl::StatusCode::kFailedPrecondition, "ENGINES_MISSING",
                 absl::StrCat("what only they know would be forgotten (", absent,
                              "); try again then, or declare dead who will not come back"));
  }
  if (const std::string doubt = WhoIsInDoubt(core); !doubt.empty())
    return Error(absl::StatusCode::kFailedPrecondition, "ENGINES_MISSING", doubt);
  if (event.newest) return absl::OkStatus();
  const std::string pools = WhatMayBePinned(core, found);
  if (pools.empty()) return absl::OkStatus();
  return Error(absl::StatusCode::kFailedPrecondition, "PINS_UNKNOWN",
               absl::StrCat(pools,
                            "; whether that was meant is not known any more: pin what "
                            "should stay (`lorry rollback ADAPTER VERSION`), then adopt "
                            "with --newest if all others should go on to the newest"));
}

// --- adopting

// Syncs that wait or run were begun by records that cannot be trusted, or with versions that are
// gone: the queues are filled again from what is stored.
void Adopt(Core& core, const PoolId& id, Pool& pool, const Found* last) {
  PoolRecord& record = pool.record;
  if (last != nullptr) {
    record.epoch = std::max(record.epoch, last->highest);
    record.began = Epoch();
    pool.decided_at = core.now;  // members have yet to hear of it
    // Nobody knows any more whether it was decided behind a barrier: the policy of today decides.
    const AdapterInfo* info = core.FindAdapter(id.adapter);
    const bool barrier = info != nullptr && info->policy.mode == fleet::SyncMode::kBarrier;
    record.barrier = barrier ? last->activation.epoch : Epoch();
    if (record.history.empty() || record.history.back() != last->activation) {
      record.history = {last->activation};
    }
    if (!record.considered.has_value() || *record.considered < last->activation.version.key)
      record.considered = last->activation.version.key;
  }
  // What waited, or was under way, is not decided yet, and is there to be queued again.
  if (!record.pending.empty() || pool.sync.has_value()) {
    record.considered.reset();
    if (!record.history.empty()) record.considered = record.history.back().version.key;
  }
  // A store that has forgotten this version may give its number to another one.
  if (record.considered.has_value() && !core.versions.contains(*record.considered))
    record.considered.reset();
  if (record.override_to.has_value() && !core.versions.contains(*record.override_to))
    record.override_to.reset();
  record.pending.clear();
  core.SavePool(id, pool);
  if (!pool.sync.has_value()) return;
  pool.EndSync();
  core.SaveSync(id, pool);
}

}  // namespace

void LoseRecords(Core& core) {
  core.meta.worth = Worth::kLost;
  core.Save(MetaKey(), core.meta);
  // Pins from before do not count: operators say from here on what is pinned.
  for (auto& [id, pool] : core.pools) {
    if (!pool.record.override_to.has_value()) continue;
    pool.record.override_to.reset();
    core.SavePool(id, pool);
  }
}

void HandleAdopted(Core& core, const FleetAdopted& event) {
  const auto answer = [&](absl::Status status) {
    core.replies.push_back(Reply{event.request, std::move(status), {}, {}});
  };
  if (!core.store_known) {
    return answer(Error(absl::StatusCode::kFailedPrecondition, "STORE_UNKNOWN",
                        "the store was not read yet; retry when it answers"));
  }
  if (!IsLoss(core.footing)) {
    return answer(Error(absl::StatusCode::kFailedPrecondition, "NOT_ADOPTABLE",
                        "the orchestrator has its records and the store its own; there is nothing "
                        "to adopt"));
  }
  for (const auto& [key, version] : core.versions) {
    for (const auto kind : {fleet::EngineKind::kSglang, fleet::EngineKind::kVllm})
      core.NameOf(version, kind);
  }
  const std::map<PoolId, Found> found = LastDecisions(core);
  if (absl::Status why = WhyNotAdopted(core, event, found); !why.ok())
    return answer(std::move(why));

  // Proxies refuse a lower incarnation, the store a lower holder set; and what they remember of an
  // equal one was decided by records that are gone.
  const uint64_t highest = std::max(HighestIncarnationSeen(core), core.meta.term.incarnation);
  core.meta = MetaRecord{Term{highest + 1, 1}, Worth::kSettled, core.meta.floor};
  core.Save(MetaKey(), core.meta);
  core.remembered.reset();
  core.holds_record = HoldsRecord{};
  core.holds_revision = core.holds_acked = Revision();
  core.holds_sent.clear();
  core.held.clear();
  core.Save(HoldsKey(), core.holds_record);
  for (const auto& [id, last] : found) {
    if (core.FindAdapter(id.adapter) != nullptr) core.PoolOf(id);
  }
  for (auto& [id, pool] : core.pools) {
    const auto last = found.find(id);
    Adopt(core, id, pool, last != found.end() ? &last->second : nullptr);
  }
  answer(absl::OkStatus());
}

void AdvanceAdoption(Core& core) {
  const Footing footing = Judge(core);
  if (footing == Footing::kRecordsLost && core.meta.worth != Worth::kLost) LoseRecords(core);
  if (footing == Footing::kSettled && core.meta.worth == Worth::kNew) {
    core.meta.worth = Worth::kSettled;
    core.Save(MetaKey(), core.meta);
  }
  const Footing before = std::exchange(core.footing, footing);
  if (before == footing) return;
  core.changed.All();
  if (IsLoss(before) || IsLoss(footing)) core.effects.emplace_back(FootingChanged{footing});
}

}  // namespace lorry::sync
