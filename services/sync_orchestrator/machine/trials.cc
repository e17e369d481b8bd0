#include "services/sync_orchestrator/machine/trials.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "lib/base/first_after.h"
#include "services/sync_orchestrator/machine/desired.h"
#include "services/sync_orchestrator/machine/roster.h"
#include "services/sync_orchestrator/machine/verdicts.h"

namespace lorry::sync {
namespace {

// Longer than a load and a token take on a healthy engine.
int64_t PatienceOf(const Core& core, const AdapterName& adapter) {
  const AdapterInfo* info = core.FindAdapter(adapter);
  const int64_t deadline = info != nullptr ? info->policy.stage_deadline_ms : 0;
  return std::max<int64_t>(1, deadline * core.config.canary_percent / 100);
}

// Whether the version is wanted on the member: by its whole pool, or by a sync that it is part of.
bool Wants(const Core& core, const Trial& trial, const PoolId& id, const MemberId& member) {
  if (trial.wanted_by.at(id)) return true;
  const Pool& pool = core.pools.at(id);
  const SyncMember* part = pool.sync.has_value() ? pool.sync->Find(member) : nullptr;
  return part != nullptr && part->dropped == Drop::kNone;
}

bool TakesPart(const Core& core, const Question& question, const Trial& trial,
               const Member& member) {
  return member.group == question.group && StandingOf(core, member) == MemberStanding::kReady &&
         std::any_of(trial.wanted_by.begin(), trial.wanted_by.end(), [&](const auto& by) {
           return by.first.pool == member.record.pool && Wants(core, trial, by.first, member.id);
         });
}

bool Is(const Core& core, const Member& member, const VersionInfo& version,
        fleet::ResidencyState state) {
  const fleet::ObservedResidency* residency = ResidencyOf(core, member, version);
  return residency != nullptr && residency->state == state;
}

// First whoever has not failed just now, has lost no engine of it, has not refused it and was not
// slow.
auto RankOf(const Core& core, const Question& question, const Trial& trial, const Member& member) {
  const GroupVerdict& verdict = VerdictOf(core, question.group, question.version);
  const bool lost = verdict.deaths.contains(member.id) || verdict.hung.contains(member.id);
  return std::tuple(Is(core, member, trial.version, fleet::ResidencyState::kFailed), lost,
                    verdict.refusals.contains(member.id), trial.slow.contains(member.id),
                    member.id);
}

// The members of the group in all pools that want the version.
std::vector<const Member*> MembersOf(const Core& core, const Question& question,
                                     const Trial& trial) {
  std::vector<const Member*> group;
  for (const auto& [id, whole_pool] : trial.wanted_by) {
    const auto members = core.places.find({id.pool, question.group});
    if (members == core.places.end()) continue;
    for (const MemberId& member : members->second) group.push_back(&core.members.at(member));
  }
  return group;
}

const Member* BestOf(const Core& core, const Question& question, const Trial& trial) {
  const Member* best = nullptr;
  for (const Member* member : MembersOf(core, question, trial)) {
    if (!TakesPart(core, question, trial, *member)) continue;
    const auto its = trial.tries.find(member->id);
    const bool tries = its != trial.tries.end();
    const bool failed = Is(core, *member, trial.version, fleet::ResidencyState::kFailed);
    if (tries && (its->second.revoked.has_value() || !failed)) continue;
    // Whoever has failed goes on alone (EndTries).
    if (failed && trial.tries.size() > (tries ? 1 : 0)) continue;
    const bool better = best == nullptr || RankOf(core, question, trial, *member) <
                                               RankOf(core, question, trial, *best);
    if (better) best = member;
  }
  return best;
}

// Whether what the member heard last, or may hear yet, permits it to load the version.
bool HasLeave(const Core& core, const Member& member, const VersionInfo& version) {
  if (!IsAnswered(core, member)) return true;
  const auto part = member.desired.parts.find(version.key.adapter);
  if (part == member.desired.parts.end()) return false;
  const EngineName name = core.NameIn(version, member.observed->limits.kind);
  const std::vector<fleet::WantedVersion>& wanted = part->second->wanted;
  const auto it = std::ranges::lower_bound(wanted, name, {}, &fleet::WantedVersion::name);
  return it != wanted.end() && it->name == name && it->load;
}

bool IsGone(const Core& core, const Member& member) {
  const MemberStanding standing = StandingOf(core, member);
  return standing == MemberStanding::kLost || standing == MemberStanding::kDead;
}

void Revoke(const Core& core, Try& its) {
  if (!its.revoked.has_value()) its.revoked = core.now;
}

// It knows that it must not try again; and its engine is there, or was given the time to come back
// in which a proxy tells what an engine died of.
bool HasAnswered(const Core& core, const Member& member, const Trial& trial, const Try& its) {
  const bool waited = core.now - *its.revoked >= core.config.lost_after_ms;
  return !HasLeave(core, member, trial.version) && (waited || !member.observed->boot.empty());
}

// A try that is over counts until the member has answered that it must not try again. One that
// killed the engine ends by itself: the leave was for as many deaths as were known then.
void EndTries(const Core& core, const Question& question, Trial& trial) {
  const bool alone = trial.tries.size() == 1;
  for (auto it = trial.tries.begin(); it != trial.tries.end();) {
    const Member& member = core.members.at(it->first);
    const bool loads = Is(core, member, trial.version, fleet::ResidencyState::kLoading);
    const bool died = DeathsOf(core, member, trial.version) > it->second.deaths;
    const bool failed = Is(core, member, trial.version, fleet::ResidencyState::kFailed);
    if (died || (failed && !alone) || !TakesPart(core, question, trial, member))
      Revoke(core, it->second);
    const bool ends =
        it->second.revoked.has_value() && !loads &&
        (died || IsGone(core, member) || HasAnswered(core, member, trial, it->second));
    it = ends ? trial.tries.erase(it) : std::next(it);
  }
}

// Engines that may yet end because of the version: those that try it, and those that an earlier
// leader told to, as far as this one can know.
size_t LivesAtRisk(const Core& core, const Question& question, const Trial& trial) {
  size_t lives = trial.tries.size();
  for (const Member* member : MembersOf(core, question, trial)) {
    if (trial.tries.contains(member->id) || IsGone(core, *member)) continue;
    const Term& heard = member->observed->term;
    const bool of_another = heard != Term() && heard != core.meta.term;
    if (of_another || Is(core, *member, trial.version, fleet::ResidencyState::kLoading)) ++lives;
  }
  return lives;
}

void AdvanceTrial(Core& core, const Question& question, Trial& trial) {
  const std::map<MemberId, Try> before = trial.tries;
  EndTries(core, question, trial);
  const int64_t patience = PatienceOf(core, question.version.adapter);
  const auto is_stuck = [&](const auto& its) {
    return its.second.revoked.has_value() || core.now - its.second.since >= patience ||
           Is(core, core.members.at(its.first), trial.version, fleet::ResidencyState::kFailed);
  };
  const bool stuck = std::all_of(trial.tries.begin(), trial.tries.end(), is_stuck);
  const Member* next = stuck ? BestOf(core, question, trial) : nullptr;
  // The one that failed goes on where nobody else can try.
  if (next != nullptr && !trial.tries.contains(next->id)) {
    for (auto& [id, its] : trial.tries) {
      const Member& member = core.members.at(id);
      if (!Is(core, member, trial.version, fleet::ResidencyState::kFailed)) trial.slow.insert(id);
      if (!Is(core, member, trial.version, fleet::ResidencyState::kLoading)) Revoke(core, its);
    }
    const uint32_t spent = LivesSpent(VerdictOf(core, question.group, question.version));
    if (spent + LivesAtRisk(core, question, trial) < core.config.deaths_limit)
      trial.tries[next->id] = Try{core.now, std::nullopt, DeathsOf(core, *next, trial.version)};
  }
  if (trial.tries == before) return;
  const AdapterName& adapter = question.version.adapter;
  for (const auto& [member, its] : before) core.changed.Part(member, adapter);
  for (const auto& [member, its] : trial.tries) core.changed.Part(member, adapter);
}

// --- what is asked

void Ask(const Core& core, const PoolId& id, const VersionKey& version, bool whole_pool,
         std::map<Question, Trial>& asked) {
  const VersionInfo* info = core.FindVersion(version);
  if (info == nullptr) return;
  for (auto it = core.places.lower_bound({id.pool, EngineGroup()});
       it != core.places.end() && it->first.first == id.pool; ++it) {
    const EngineGroup& group = it->first.second;
    if (VerdictOf(core, group, version).verdict != Verdict::kOpen) continue;
    Trial& trial = asked[{version, group}];
    trial.version = *info;
    bool& whole = trial.wanted_by[id];
    whole = whole || whole_pool;
  }
}

// Every version that some pool wants, in every group of its members that has no verdict on it.
std::map<Question, Trial> WhatIsOpen(const Core& core) {
  std::map<Question, Trial> asked;
  for (const auto& [id, pool] : core.pools) {
    const AdapterInfo* info = core.FindAdapter(id.adapter);
    if (info == nullptr || !info->policy.pools.contains(id.pool)) continue;
    if (pool.sync.has_value()) Ask(core, id, pool.sync->version.key, false, asked);
    const std::vector<Activation>& history = pool.record.history;
    const size_t window = std::min<size_t>(history.size(), info->policy.KeepCount());
    for (size_t i = history.size() - window; i < history.size(); ++i)
      Ask(core, id, history[i].version.key, true, asked);
    for (auto it = core.aliases.lower_bound({id.adapter, AliasName()});
         it != core.aliases.end() && it->first.first == id.adapter; ++it) {
      Ask(core, id, it->second, true, asked);
    }
  }
  for (const auto& [key, lease] : core.leases) {
    const PoolId id{lease.record.version.key.adapter, lease.record.pool};
    if (core.pools.contains(id)) Ask(core, id, lease.record.version.key, true, asked);
  }
  return asked;
}

void OpenTrials(Core& core) {
  std::map<Question, Trial> asked = WhatIsOpen(core);
  for (auto& [question, trial] : asked) {
    const auto known = core.trials.find(question);
    if (known != core.trials.end()) {
      trial.tries = std::move(known->second.tries);
      trial.slow = std::move(known->second.slow);
    } else {
      LookBack(core, question.group, trial.version);
    }
  }
  std::erase_if(asked, [&](const auto& entry) {
    return VerdictOf(core, entry.first.group, entry.first.version).verdict != Verdict::kOpen;
  });
  for (const auto& [question, trial] : core.trials) {
    if (asked.contains(question)) continue;
    for (const auto& [member, its] : trial.tries)
      core.changed.Part(member, question.version.adapter);
  }
  core.trials = std::move(asked);
}

}  // namespace

Permission PermissionOf(const Core& core, const Member& member, const VersionInfo& version) {
  const GroupVerdict& verdict = VerdictOf(core, member.group, version.key);
  if (verdict.verdict == Verdict::kProven) return Permission::kLoad;
  // No verdict takes away what an engine has.
  if (Is(core, member, version, fleet::ResidencyState::kLoaded)) return Permission::kLoad;
  if (IsBar(verdict)) return Permission::kNo;
  const auto trial = core.trials.find({version.key, member.group});
  if (trial == core.trials.end()) return Permission::kFetch;
  const auto its = trial->second.tries.find(member.id);
  const bool may = its != trial->second.tries.end() && !its->second.revoked.has_value();
  return may ? Permission::kLoad : Permission::kFetch;
}

void AdvanceTrials(Core& core) {
  if (core.footing != Footing::kSettled || !IsGathered(core)) return;
  if (std::exchange(core.asked_at, core.changed.wants()) != core.changed.wants()) OpenTrials(core);
  for (auto& [question, trial] : core.trials) AdvanceTrial(core, question, trial);
}

std::optional<Tick> TrialWakeAt(const Core& core) {
  FirstAfter wake(core.now);
  for (const auto& [question, trial] : core.trials) {
    for (const auto& [member, its] : trial.tries) {
      wake.At(its.since + PatienceOf(core, question.version.adapter));
      if (its.revoked.has_value()) wake.At(*its.revoked + core.config.lost_after_ms);
    }
  }
  return wake.first();
}

}  // namespace lorry::sync
