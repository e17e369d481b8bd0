#include "services/sync_orchestrator/machine/watches.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/base/error.h"
#include "lib/base/first_after.h"
#include "lib/fleet/quiesce.h"
#include "services/sync_orchestrator/machine/catalogue.h"
#include "services/sync_orchestrator/machine/progress.h"
#include "services/sync_orchestrator/machine/roster.h"
#include "services/sync_orchestrator/machine/verdicts.h"
#include "services/sync_orchestrator/machine/waiting.h"

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

WatchEvent Unknown(std::string reason, std::string detail) {
  WatchEvent event = Final(State::kFailed, std::move(reason), std::move(detail));
  event.is_unknown = true;
  return event;
}

WatchEvent Superseded(const VersionKey& by) {
  WatchEvent event = Final(State::kSuperseded);
  event.superseded_by = by;
  return event;
}

State StateOf(SyncPhase phase) {
  if (phase == SyncPhase::kHolding) return State::kHolding;
  return phase == SyncPhase::kLocking ? State::kLocking : State::kStaging;
}

WatchEvent Staging(const Core& core, const PoolId& id, const Pool& pool) {
  const SyncRecord& sync = *pool.sync;
  const Sights sights = Look(core, id, sync.version);
  WatchEvent event;
  event.state = StateOf(PhaseOf(pool));
  event.epoch = sync.epoch;
  event.reason = ToString(pool.wait);
  event.detail = TroublesOf(core, pool, sights);
  for (const SyncMember& part : sync.members) {
    ++event.members;
    const Sight* sight = part.dropped == Drop::kNone ? Find(sights, part.member) : nullptr;
    if (sight != nullptr && HasLoaded(*sight)) ++event.done;
  }
  event.progress = ProgressOf(core, id, sync.version, sights);
  return event;
}

// Whether it may yet serve a decision: it has the version loaded, whatever else is said of it, or
// is READY and no verdict keeps it from loading it. Whoever is expected back may, too.
bool MayServe(const Core& core, const Member& member, const VersionInfo& version) {
  if (!member.session.has_value()) return IsExpected(core, member);
  const AdapterInfo* info = core.FindAdapter(version.key.adapter);
  const fleet::EngineLimits& limits = member.observed->limits;
  if (info != nullptr && !fleet::WhyNotServable(limits, version.traits, info->policy).empty())
    return false;
  if (IsLoaded(member, core.NameIn(version, limits.kind))) return true;
  return StandingOf(core, member) == MemberStanding::kReady && !IsBarred(core, member, version.key);
}

// This decision or a later one. Epochs of another incarnation say nothing, and the same one means
// the same version.
bool Serves(const Core& core, const Member& member, const fleet::ObservedRow* row,
            const Activation& activation) {
  if (!member.session.has_value() || row == nullptr || row->mode != fleet::RowMode::kOpen ||
      member.observed->term.incarnation != core.meta.term.incarnation) {
    return false;
  }
  if (row->epoch != activation.epoch) return row->epoch > activation.epoch;
  return row->target == core.NameIn(activation.version, member.observed->limits.kind);
}

// Whether the decision is not delivered before this member serves it, or a later one.
bool IsWaitedFor(const Core& core, const PoolId& id, const Member& member,
                 const Activation& activation) {
  ++core.work.members;
  if (member.record.pool != id.pool || member.record.dead) return false;
  return !Serves(core, member, RowOf(member, id.adapter), activation) &&
         MayServe(core, member, activation.version);
}

// The next such member, looking from `from` to the end and then from the beginning; none: every
// member that can serve the decision does.
std::optional<MemberId> NextWaitedFor(const Core& core, const PoolId& id,
                                      const Activation& activation, const MemberId& from) {
  const auto middle = core.members.lower_bound(from);
  const auto waits = [&](const auto& entry) {
    return IsWaitedFor(core, id, entry.second, activation);
  };
  auto it = std::find_if(middle, core.members.end(), waits);
  if (it != core.members.end()) return it->first;
  it = std::find_if(core.members.begin(), middle, waits);
  if (it != middle) return it->first;
  return std::nullopt;
}

const Activation* ActivationOf(const Core& core, const PoolId& id, const VersionKey& version) {
  const auto pool = core.pools.find(id);
  if (pool == core.pools.end()) return nullptr;
  const std::vector<Activation>& history = pool->second.record.history;
  const auto it = std::ranges::find_if(
      history, [&](const Activation& activation) { return activation.version.key == version; });
  return it != history.end() ? &*it : nullptr;
}

// Members of the pool that serve this decision or a later one, of those that could.
WatchEvent Committed(const Core& core, const PoolId& id, const Pool& pool,
                     const Activation& activation) {
  const Sights sights = Look(core, id, activation.version);
  WatchEvent event;
  event.state = State::kCommitted;
  event.epoch = activation.epoch;
  bool waits = false;
  for (const Sight& sight : sights.members) {
    ++event.members;
    if (Serves(core, *sight.member, sight.row, activation)) {
      ++event.done;
    } else {
      waits = waits || MayServe(core, *sight.member, activation.version);
    }
  }
  if (!waits || core.now - pool.decided_at >= core.config.deliver_ms) {
    event.state = State::kActive;
    event.final = true;
  }
  event.progress = ProgressOf(core, id, activation.version, sights);
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
  const VersionInfo* info = core.FindVersion(version);
  if (const std::string why = info != nullptr ? WhyNoneFits(core, id, *info) : ""; !why.empty())
    return Final(State::kFailed, "ENGINE_LIMITS", why);
  WatchEvent event;
  event.state = State::kWaiting;
  event.reason = ToString(pool.wait);
  event.detail = pool.detail;
  if (pool.sync.has_value()) event.reason = "SYNC_RUNNING";
  if (pool.record.override_to.has_value() && pool.record.override_to != version)
    event.reason = "OVERRIDDEN";
  if (info != nullptr) event.progress = ProgressOf(core, id, *info, Look(core, id, *info));
  return event;
}

void Tell(Core& core, WatchId id, WatchState& watch, WatchEvent view) {
  const bool is_news = !watch.last.has_value() || !SaysTheSame(*watch.last, view);
  watch.more_to_tell = !is_news && *watch.last != view;
  const bool in_pace = core.now - watch.told_at >= core.config.progress_ms;
  if (!is_news && !(watch.more_to_tell && in_pace)) return;
  watch.more_to_tell = false;
  watch.told_at = core.now;
  watch.last = view;
  core.effects.emplace_back(NotifyWatch{id, std::move(view)});
}

// The source of a pool that takes its versions from somewhere else than what is published.
const fleet::PoolSource* FollowedBy(const Core& core, const PoolId& id) {
  const AdapterInfo* info = core.FindAdapter(id.adapter);
  if (info == nullptr) return nullptr;
  const auto source = info->policy.pools.find(id.pool);
  const bool follows = source != info->policy.pools.end() &&
                       source->second.kind != fleet::PoolSource::Kind::kPublished;
  return follows ? &source->second : nullptr;
}

// A full queue turned it away.
std::optional<WatchEvent> WhatRefused(const Core& core, const Pool& pool,
                                      const VersionKey& version) {
  if (std::ranges::count(pool.record.refused, version) == 0) return std::nullopt;
  return Final(
      State::kFailed, "SYNC_BACKLOG",
      absl::StrCat("more than ", core.config.backlog_limit, " versions waited; publish slower"));
}

bool IsComing(const Pool& pool, const VersionKey& version) {
  const bool is_synced = pool.sync.has_value() && pool.sync->version.key == version;
  return is_synced || pool.record.override_to == version ||
         std::ranges::count(pool.record.pending, version) > 0;
}

// What ends the wait for a version to which a pool will never come any more. A rollback passes newer
// versions by; but an older one does not succeed what a newer run has fenced.
std::optional<WatchEvent> WhatEnded(const Core& core, const PoolId& id, const Pool& pool,
                                    const VersionKey& version) {
  const PoolRecord& record = pool.record;
  const bool is_served = pool.committed() != nullptr && pool.committed()->version.key == version;
  if (is_served || IsComing(pool, version)) return std::nullopt;
  std::optional<VersionKey> by;
  if (record.considered >= version) {
    if (!record.pending.empty()) {
      by = record.pending.back();
    } else if (pool.sync.has_value()) {
      by = pool.sync->version.key;
    } else if (pool.committed() != nullptr) {
      by = pool.committed()->version.key;
    }
  }
  const AdapterInfo* info = core.FindAdapter(id.adapter);
  const bool is_fenced =
      info != nullptr && version.run < info->current_run && FollowedBy(core, id) == nullptr;
  if (by.has_value() && (*by > version || !is_fenced)) return Superseded(*by);
  if (!is_fenced) return std::nullopt;
  return Final(State::kFailed, "RUN_FENCED", "a newer run was opened before it was decided");
}

// What ends the wait for a version that an alias does not name. It may yet name it, but for that
// nobody can be made to wait.
std::optional<WatchEvent> WhatIsNotNamed(const Core& core, const PoolId& id,
                                         const fleet::PoolSource& source,
                                         const VersionKey& version) {
  const auto alias = core.aliases.find({id.adapter, source.alias});
  if (alias != core.aliases.end() && alias->second == version) return std::nullopt;
  return Final(State::kStored, "",
               absl::StrCat("pool ", id.pool.value, " follows alias ", source.alias.value,
                            ", which does not name it"));
}

// For a pool that follows another pool or an alias: versions that these do not name are never
// decided in it.
WatchEvent Following(const Core& core, const PoolId& id, const Pool& pool,
                     const fleet::PoolSource& source, const VersionKey& version) {
  if (source.kind == fleet::PoolSource::Kind::kAlias) {
    auto ended = WhatIsNotNamed(core, id, source, version);
    return ended.has_value() ? *std::move(ended) : Waiting(core, pool, version, id);
  }
  const auto other = core.pools.find({id.adapter, source.pool});
  if (other == core.pools.end()) return Waiting(core, pool, version, id);
  // An operator may have pinned what its queue once turned away.
  if (ActivationOf(core, other->first, version) == nullptr && !IsComing(other->second, version)) {
    if (auto refused = WhatRefused(core, other->second, version)) return *std::move(refused);
    const fleet::PoolSource* theirs = FollowedBy(core, other->first);  // an alias, if anything
    if (theirs != nullptr) {
      if (auto ended = WhatIsNotNamed(core, other->first, *theirs, version))
        return *std::move(ended);
    }
  }
  if (auto ended = WhatEnded(core, other->first, other->second, version)) return *std::move(ended);
  WatchEvent event = Waiting(core, pool, version, id);
  // That nothing is decided there yet is less than what that pool says itself.
  const bool says_why = !event.reason.empty() && pool.wait != Wait::kNextVersion;
  if (event.final || says_why) return event;
  event.reason = ToString(other->second.wait);
  event.detail = absl::StrCat("the pool follows pool ", source.pool.value, ", which waits",
                              other->second.detail.empty() ? "" : ": ", other->second.detail);
  return event;
}

}  // namespace

bool SaysTheSame(const WatchEvent& a, const WatchEvent& b) {
  const auto said = [](const WatchEvent& e) {
    return std::tie(e.state, e.final, e.reason, e.epoch, e.superseded_by);
  };
  return said(a) == said(b);
}

WatchEvent ViewOf(const Core& core, const VersionKey& version, const PoolName& pool_name) {
  const PoolId id{version.adapter, pool_name};
  if (core.footing == Footing::kRecordsLost || core.footing == Footing::kStoreLost) {
    WatchEvent waits;
    waits.reason = ToString(core.footing);
    waits.detail = Explain(core.footing);
    return waits;
  }
  // A pool that was taken from the policy keeps its record, and comes to no other version.
  if (core.store_known && core.FindPolicy(id) == nullptr) {
    const absl::Status why = NoPool(core, id);
    return Unknown(ReasonOf(why), std::string(why.message()));
  }
  const auto it = core.pools.find(id);
  if (it == core.pools.end()) return WatchEvent{};
  const Pool& pool = it->second;
  for (const Activation& activation : pool.record.history) {
    if (activation.version.key == version) return Committed(core, id, pool, activation);
  }
  if (const GroupVerdict* given_up = GivenUp(core, id, version)) {
    return Final(State::kFailed, std::string(ToString(given_up->verdict)), Explain(*given_up));
  }
  if (pool.sync.has_value() && pool.sync->version.key == version) return Staging(core, id, pool);
  const PoolRecord& record = pool.record;
  const fleet::PoolSource* source = FollowedBy(core, id);  // what is queued waits for no such one
  const bool is_queued = source == nullptr && std::ranges::count(record.pending, version) > 0;
  if (record.override_to == version || is_queued) return Waiting(core, pool, version, id);
  if (source == nullptr) {
    if (auto refused = WhatRefused(core, pool, version)) return *std::move(refused);
  }
  // Leases still name what the store has lost.
  if (core.store_known && !core.versions.contains(version)) {
    return Unknown("UNKNOWN_VERSION", "it is not stored");
  }
  if (source != nullptr) return Following(core, id, pool, *source, version);
  if (auto ended = WhatEnded(core, id, pool, version)) return *std::move(ended);
  return Waiting(core, pool, version, id);
}

namespace {

// Whether a watch has more to look at than how far members are: they tell their progress often,
// and it takes a look at each of them to tell it on.
bool IsConcerned(const Core& core, const Changes::Scope& changed, WatchState& watch) {
  if (watch.is_new || changed.all || changed.adapters.contains(watch.version.adapter)) return true;
  const bool committed = watch.last.has_value() && watch.last->state == State::kCommitted;
  if (!committed || !watch.until.has_value()) return false;
  const PoolId id{watch.version.adapter, watch.pool};
  const Activation* activation = ActivationOf(core, id, watch.version);
  if (activation == nullptr) return true;
  watch.until = NextWaitedFor(core, id, *activation, *watch.until);
  return !watch.until.has_value();
}

bool IsTouched(const Changes::Scope& changed, const WatchState& watch) {
  return !changed.members.empty() || changed.parts.contains(watch.version.adapter);
}

std::optional<Tick> DueAt(const Core& core, const WatchState& watch) {
  FirstAfter due(core.now);
  due.At(watch.opened_at + core.config.lost_after_ms);
  if (watch.more_to_tell) due.At(watch.told_at + core.config.progress_ms);
  const auto pool = core.pools.find({watch.version.adapter, watch.pool});
  if (pool != core.pools.end()) due.At(pool->second.decided_at + core.config.deliver_ms);
  if (watch.committed_since.has_value()) due.At(*watch.committed_since + core.config.deliver_ms);
  return due.first();
}

void Judge(Core& core, WatchId id, WatchState& watch) {
  watch.is_new = false;
  WatchEvent view = ViewOf(core, watch.version, watch.pool);
  // The publisher may be faster than the store's watch: what it has just stored is not unknown
  // yet.
  if (view.is_unknown && core.now < watch.opened_at + core.config.lost_after_ms) {
    view = WatchEvent{};
    view.reason = "UNKNOWN_VERSION";
  }
  // Decisions go on coming, so later ones do not make the watch last longer.
  if (view.state == State::kCommitted) {
    if (!watch.committed_since.has_value()) watch.committed_since = core.now;
    if (core.now - *watch.committed_since >= core.config.deliver_ms) {
      view.state = State::kActive;
      view.final = true;
    }
  }
  watch.until.reset();
  const PoolId pool{watch.version.adapter, watch.pool};
  const Activation* activation = ActivationOf(core, pool, watch.version);
  if (view.state == State::kCommitted && !view.final && activation != nullptr)
    watch.until = NextWaitedFor(core, pool, *activation, MemberId());
  Tell(core, id, watch, std::move(view));
}

}  // namespace

void HandleWatchOpened(Core& core, const WatchOpened& event) {
  WatchState& watch = core.watches[event.watch];
  watch.version = event.version;
  watch.pool = event.pool;
  watch.opened_at = core.now;
  core.watch_due.Set(event.watch, core.now);
}

void HandleWatchClosed(Core& core, const WatchClosed& event) {
  core.watches.erase(event.watch);
  core.watch_due.Clear(event.watch);
}

void AdvanceWatches(Core& core) {
  const Changes::Scope changed = std::exchange(core.changed.watches, {});
  const std::vector<WatchId> due = core.watch_due.TakeDue(core.now);
  std::set<WatchId> to_look(due.begin(), due.end());
  if (!changed.empty()) {
    for (auto& [id, watch] : core.watches) {
      const bool in_pace = core.now - watch.told_at >= core.config.progress_ms;
      const bool touched = IsTouched(changed, watch);
      if (IsConcerned(core, changed, watch) || (touched && in_pace)) {
        to_look.insert(id);
      } else if (touched) {
        watch.more_to_tell = true;
        core.watch_due.Set(id, watch.told_at + core.config.progress_ms);
      }
    }
  }
  for (const WatchId id : to_look) {
    const auto it = core.watches.find(id);
    if (it == core.watches.end()) continue;
    Judge(core, id, it->second);
    if (it->second.last->final) {
      core.watch_due.Clear(id);
      core.watches.erase(it);
    } else {
      core.watch_due.Set(id, DueAt(core, it->second));
    }
  }
}

}  // namespace lorry::sync
