#include "services/sync_orchestrator/machine/watches.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "services/sync_orchestrator/machine/roster.h"

namespace lorry::sync {
namespace {

using State = WatchEvent::State;

WatchEvent Final(State state, std::string reason = "", std::string detail = "") {
  WatchEvent event;
  event.state = state;
  event.final = true;
  event.reason = std::move(reason);
  event.detail = std::move(detail);
  return event;
}

WatchEvent Superseded(const VersionKey& by) {
  WatchEvent event = Final(State::kSuperseded);
  event.superseded_by = by;
  return event;
}

WatchEvent Staging(Core& core, const Pool& pool) {
  WatchEvent event;
  event.state = State::kStaging;
  event.epoch = pool.sync->epoch;
  for (const SyncMember& part : pool.sync->members) {
    const Member& member = core.members.at(part.member);
    ++event.members;
    if (!part.dropped.empty()) {
      absl::StrAppend(&event.detail, event.detail.empty() ? "" : ", ", part.member.value,
                      " dropped: ", part.dropped);
      continue;
    }
    if (!member.observed.has_value()) continue;
    const fleet::ObservedResidency* residency =
        ResidencyOf(member, core.NameOf(pool.sync->version, member.observed->limits.kind));
    if (residency == nullptr) continue;
    event.bytes_done += residency->bytes_done;
    event.bytes_total += residency->bytes_total;
    if (residency->state == fleet::ResidencyState::kLoaded) ++event.done;
  }
  return event;
}

// Members of the pool that serve this decision or a later one, of those that could.
WatchEvent Delivering(Core& core, const PoolId& id, const Pool& pool,
                      const Activation& activation) {
  WatchEvent event;
  event.state = State::kDelivering;
  event.epoch = activation.epoch;
  bool waits = false;
  for (const auto& [member_id, member] : core.members) {
    if (member.record.pool != id.pool || member.record.dead) continue;
    ++event.members;
    const fleet::ObservedRow* row = RowOf(member, id.adapter);
    const bool serves = member.session.has_value() && row != nullptr &&
                        row->mode == fleet::RowMode::kOpen && row->epoch >= activation.epoch;
    if (serves) ++event.done;
    waits = waits || (!serves && StandingOf(core, member) == MemberStanding::kReady);
  }
  if (!waits || core.now - pool.decided_at >= core.config.deliver_ms) {
    event.state = State::kActive;
    event.final = true;
  }
  return event;
}

bool HasMembers(const Core& core, const PoolName& pool) {
  return std::any_of(core.members.begin(), core.members.end(), [&](const auto& entry) {
    return entry.second.record.pool == pool && !entry.second.record.dead;
  });
}

WatchEvent Waiting(const Core& core, const Pool& pool, const VersionKey& version,
                   const PoolId& id) {
  if (!HasMembers(core, id.pool)) return Final(State::kStored);
  if (pool.waits_for == "UNIMPLEMENTED") return Final(State::kFailed, pool.waits_for, pool.detail);
  WatchEvent event;
  event.state = State::kWaiting;
  event.reason = pool.waits_for;
  event.detail = pool.detail;
  if (pool.sync.has_value()) event.reason = "SYNC_RUNNING";
  if (pool.record.override_to.has_value() && pool.record.override_to != version)
    event.reason = "OVERRIDDEN";
  return event;
}

bool IsUnknown(const WatchEvent& view) {
  return view.state == State::kFailed &&
         (view.reason == "VERSION_UNKNOWN" || view.reason == "UNKNOWN_ADAPTER");
}

}  // namespace

WatchEvent ViewOf(Core& core, const VersionKey& version, const PoolName& pool_name) {
  const PoolId id{version.adapter, pool_name};
  const auto it = core.pools.find(id);
  if (it == core.pools.end()) {
    return core.store_known
               ? Final(State::kFailed, "UNKNOWN_ADAPTER", "no policy puts it into this pool")
               : WatchEvent{};
  }
  const Pool& pool = it->second;
  for (const Activation& activation : pool.record.history) {
    if (activation.version.key == version) return Delivering(core, id, pool, activation);
  }
  if (core.IsPoisoned(version)) {
    return Final(State::kFailed, "POISONED", "engines died while they loaded or probed it");
  }
  if (pool.sync.has_value() && pool.sync->version.key == version) return Staging(core, pool);
  const PoolRecord& record = pool.record;
  if (record.override_to == version ||
      std::find(record.pending.begin(), record.pending.end(), version) != record.pending.end()) {
    return Waiting(core, pool, version, id);
  }
  if (std::find(record.refused.begin(), record.refused.end(), version) != record.refused.end()) {
    return Final(
        State::kFailed, "SYNC_BACKLOG",
        absl::StrCat("more than ", core.config.backlog_limit, " versions waited; publish slower"));
  }
  if (core.store_known && core.FindVersion(version) == nullptr) {
    return Final(State::kFailed, "VERSION_UNKNOWN", "it is not stored");
  }
  if (record.considered.has_value() && version <= *record.considered) {
    if (!record.pending.empty()) return Superseded(record.pending.back());
    if (pool.sync.has_value()) return Superseded(pool.sync->version.key);
    if (pool.committed() != nullptr) return Superseded(pool.committed()->version.key);
  }
  return Waiting(core, pool, version, id);
}

void HandleWatchOpened(Core& core, const WatchOpened& event) {
  core.watches[event.watch] = WatchState{event.version, event.pool, core.now, std::nullopt};
}

std::optional<Tick> WatchWakeAt(const Core& core) {
  std::optional<Tick> wake;
  for (const auto& [id, watch] : core.watches) {
    const Tick at = watch.opened_at + core.config.lost_after_ms;
    if (at > core.now && (!wake.has_value() || at < *wake)) wake = at;
  }
  return wake;
}

void AdvanceWatches(Core& core) {
  for (auto it = core.watches.begin(); it != core.watches.end();) {
    WatchEvent view = ViewOf(core, it->second.version, it->second.pool);
    // The publisher may be faster than the store's watch: what it has just stored is not unknown
    // yet.
    if (IsUnknown(view) && core.now < it->second.opened_at + core.config.lost_after_ms) {
      view = WatchEvent{};
      view.reason = "VERSION_UNKNOWN";
    }
    const bool final = view.final;
    if (it->second.last != view) {
      it->second.last = view;
      core.effects.push_back(NotifyWatch{it->first, std::move(view)});
    }
    it = final ? core.watches.erase(it) : std::next(it);
  }
}

}  // namespace lorry::sync
