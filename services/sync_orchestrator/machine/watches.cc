#include "services/sync_orchestrator/machine/watches.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "lib/base/first_after.h"
#include "lib/base/strings.h"
#include "services/sync_orchestrator/machine/roster.h"
#include "services/sync_orchestrator/machine/verdicts.h"

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

// For people: the member's own words where it has said any.
std::string TextOf(const SyncMember& part) {
  return part.words.empty() ? std::string(ToString(part.dropped)) : part.words;
}

WatchEvent Staging(Core& core, const PoolId& id, const Pool& pool) {
  WatchEvent event;
  event.state = State::kStaging;
  event.epoch = pool.sync->epoch;
  for (const SyncMember& part : pool.sync->members) {
    const Member& member = core.members.at(part.member);
    ++event.members;
    const auto tell = [&](std::string_view what, const std::string& why) {
      absl::StrAppend(&event.detail, event.detail.empty() ? "" : ", ", part.member.value, " ",
                      ToAbsl(what), ": ", why);
    };
    if (part.dropped != Drop::kNone) {
      tell("dropped", TextOf(part));
      continue;
    }
    const fleet::ObservedResidency* residency = ResidencyOf(core, member, pool.sync->version);
    if (residency == nullptr) continue;
    if (residency->state == fleet::ResidencyState::kLoaded) ++event.done;
    if (residency->state == fleet::ResidencyState::kFailed) tell("failed", WordsOf(*residency));
  }
  event.progress = ProgressOf(core, id, pool.sync->version);
  return event;
}

// Whether it may yet serve a decision: it has the version loaded, whatever else is said of it, or is
// READY and no verdict keeps it from loading it. Whoever is expected back may, too.
bool MayServe(const Core& core, const Member& member, const VersionInfo& version) {
  if (!member.session.has_value()) return IsExpected(core, member);
  if (IsLoaded(member, core.NameIn(version, member.observed->limits.kind))) return true;
  return StandingOf(core, member) == MemberStanding::kReady &&
         !IsBar(VerdictOf(core, member.group, version.key));
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
    waits = waits || (!serves && MayServe(core, member, activation.version));
  }
  if (!waits || core.now - pool.decided_at >= core.config.deliver_ms) {
    event.state = State::kActive;
    event.final = true;
  }
  event.progress = ProgressOf(core, id, activation.version);
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
  if (pool.wait == Wait::kUnimplemented)
    return Final(State::kFailed, std::string(ToString(pool.wait)), pool.detail);
  WatchEvent event;
  event.state = State::kWaiting;
  event.reason = ToString(pool.wait);
  event.detail = pool.detail;
  if (pool.sync.has_value()) event.reason = "SYNC_RUNNING";
  if (pool.record.override_to.has_value() && pool.record.override_to != version)
    event.reason = "OVERRIDDEN";
  if (const VersionInfo* info = core.FindVersion(version))
    event.progress = ProgressOf(core, id, *info);
  return event;
}

// Whether they differ in nothing but their progress.
bool SaysTheSame(const WatchEvent& a, const WatchEvent& b) {
  const auto said = [](const WatchEvent& e) {
    return std::tie(e.state, e.final, e.reason, e.detail, e.epoch, e.done, e.members,
                    e.superseded_by);
  };
  return said(a) == said(b);
}

void Tell(Core& core, WatchId id, WatchState& watch, WatchEvent view) {
  const bool is_news = !watch.last.has_value() || !SaysTheSame(*watch.last, view);
  watch.more_to_tell = !is_news && watch.last->progress != view.progress;
  const bool in_pace = core.now - watch.told_at >= core.config.progress_ms;
  if (!is_news && !(watch.more_to_tell && in_pace)) return;
  watch.more_to_tell = false;
  watch.told_at = core.now;
  watch.last = view;
  core.effects.push_back(NotifyWatch{id, std::move(view)});
}

bool IsUnknown(const WatchEvent& view) {
  return view.state == State::kFailed &&
         (view.reason == "UNKNOWN_VERSION" || view.reason == "UNKNOWN_ADAPTER");
}

}  // namespace

std::vector<MemberProgress> ProgressOf(const Core& core, const PoolId& id,
                                       const VersionInfo& version) {
  std::map<fleet::EngineKind, EngineName> names;
  std::vector<MemberProgress> progress;
  for (const auto& [member_id, member] : core.members) {
    if (member.record.pool != id.pool || member.record.dead) continue;
    MemberProgress& its = progress.emplace_back();
    its.member = member_id;
    const MemberStanding standing = StandingOf(core, member);
    if (standing != MemberStanding::kReady) its.dropped = ToString(standing);
    if (!member.observed.has_value()) continue;
    const fleet::EngineKind kind = member.observed->limits.kind;
    const auto [known, is_new] = names.try_emplace(kind);
    if (is_new) known->second = core.NameIn(version, kind);
    const EngineName& name = known->second;
    if (const fleet::ObservedResidency* residency = ResidencyOf(member, name)) {
      its.state = residency->state;
      its.bytes_done = residency->bytes_done;
      its.bytes_total = residency->bytes_total;
    }
    const fleet::ObservedRow* row = RowOf(member, id.adapter);
    its.active = member.session.has_value() && row != nullptr &&
                 row->mode == fleet::RowMode::kOpen && row->target == name;
  }
  const auto pool = core.pools.find(id);
  if (pool == core.pools.end() || !pool->second.sync.has_value()) return progress;
  const SyncRecord& sync = *pool->second.sync;
  if (sync.version.key != version.key) return progress;
  for (const SyncMember& part : sync.members) {
    const auto its = std::ranges::lower_bound(progress, part.member, {}, &MemberProgress::member);
    if (part.dropped == Drop::kNone || its == progress.end() || its->member != part.member)
      continue;
    its->dropped = TextOf(part);
  }
  return progress;
}

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
  if (const GroupVerdict* given_up = GivenUp(core, id, version)) {
    return Final(State::kFailed, std::string(ToString(given_up->verdict)), Explain(*given_up));
  }
  if (pool.sync.has_value() && pool.sync->version.key == version) return Staging(core, id, pool);
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
    return Final(State::kFailed, "UNKNOWN_VERSION", "it is not stored");
  }
  if (record.considered.has_value() && version <= *record.considered) {
    if (!record.pending.empty()) return Superseded(record.pending.back());
    if (pool.sync.has_value()) return Superseded(pool.sync->version.key);
    if (pool.committed() != nullptr) return Superseded(pool.committed()->version.key);
  }
  return Waiting(core, pool, version, id);
}

void HandleWatchOpened(Core& core, const WatchOpened& event) {
  WatchState& watch = core.watches[event.watch];
  watch.version = event.version;
  watch.pool = event.pool;
  watch.opened_at = core.now;
}

std::optional<Tick> WatchWakeAt(const Core& core) {
  FirstAfter wake(core.now);
  for (const auto& [id, watch] : core.watches) {
    wake.At(watch.opened_at + core.config.lost_after_ms);
    if (watch.more_to_tell) wake.At(watch.told_at + core.config.progress_ms);
  }
  return wake.first();
}

void AdvanceWatches(Core& core) {
  for (auto it = core.watches.begin(); it != core.watches.end();) {
    WatchEvent view = ViewOf(core, it->second.version, it->second.pool);
    // The publisher may be faster than the store's watch: what it has just stored is not unknown
    // yet.
    if (IsUnknown(view) && core.now < it->second.opened_at + core.config.lost_after_ms) {
      view = WatchEvent{};
      view.reason = "UNKNOWN_VERSION";
    }
    const bool final = view.final;
    Tell(core, it->first, it->second, std::move(view));
    it = final ? core.watches.erase(it) : std::next(it);
  }
}

}  // namespace lorry::sync
