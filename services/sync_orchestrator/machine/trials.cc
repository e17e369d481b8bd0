#include "services/sync_orchestrator/machine/trials.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "lib/base/first_after.h"
#include "services/sync_orchestrator/machine/desired.h"
#include "services/sync_orchestrator/machine/keys.h"
#include "services/sync_orchestrator/machine/roster.h"
#include "services/sync_orchestrator/machine/verdicts.h"
#include "services/sync_orchestrator/machine/visits.h"

namespace lorry::sync {
namespace {

// No load lasts longer: the proxy gives up on it then, and an engine that lives has ended it.
constexpr int64_t kLoadEndsMs = 60'000;

// How long one member tries before another tries beside it: a share of the stage deadline, which
// should be longer than a healthy engine takes to load a version and to answer a token.
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
  return member.group == question.group && CanBeAsked(core, member, trial.version) &&
         std::any_of(trial.wanted_by.begin(), trial.wanted_by.end(), [&](const auto& by) {
           return by.first.pool == member.record.pool && Wants(core, trial, by.first, member.id);
         });
}

fleet::ResidencyState StateOf(const Core& core, const Member& member, const VersionInfo& version) {
  const fleet::ObservedResidency* residency = ResidencyOf(core, member, version);
  return residency != nullptr ? residency->state : fleet::ResidencyState::kAbsent;
}

bool Is(const Core& core, const Member& member, const VersionInfo& version,
        fleet::ResidencyState state) {
  return StateOf(core, member, version) == state;
}

// Whether the member says that all slots of its engine hold adapters that must stay loaded.
bool HasNoSlot(const Core& core, const Member& member, const VersionInfo& version) {
  const fleet::ObservedResidency* residency = ResidencyOf(core, member, version);
  return residency != nullptr && residency->no_slot;
}

// Whether the member was so slow that another was let try, and the version is still in the same
// residency state on it as at that time.
bool IsSlow(const Core& core, const Trial& trial, const Member& member) {
  const auto slow = trial.slow.find(member.id);
  return slow != trial.slow.end() && slow->second == StateOf(core, member, trial.version);
}

// The member with the lowest rank tries first: one that has a slot for the version; then one that
// has lost no engine by it, so that an engine that is sick by itself does not decide for all; then
// one that has not just failed it, is not EXCLUDED for other versions, has not refused it and was
// not slow.
auto RankOf(const Core& core, const Question& question, const Trial& trial, const Member& member) {
  const GroupVerdict& verdict = VerdictOf(core, question.group, question.version);
  const bool lost = verdict.deaths.contains(member.id) || verdict.hung.contains(member.id);
  const bool is_excluded = StandingOf(core, member) != MemberStanding::kReady;
  return std::tuple(HasNoSlot(core, member, trial.version), lost,
                    Is(core, member, trial.version, fleet::ResidencyState::kFailed), is_excluded,
                    verdict.refusals.contains(member.id), IsSlow(core, trial, member), member.id);
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

std::vector<const Member*> MembersOf(const Core& core, const Question& question, const Trial& trial,
                                     const Visit& visit) {
  if (visit.whole) return MembersOf(core, question, trial);
  std::vector<const Member*> visited;
  for (const MemberId& id : visit.members) {
    const auto it = core.members.find(id);
    if (it != core.members.end()) visited.push_back(&it->second);
  }
  return visited;
}

bool MayTry(const Core& core, const Question& question, const Trial& trial, const Member& member) {
  ++core.work.members;
  if (!TakesPart(core, question, trial, member)) return false;
  const auto its = trial.tries.find(member.id);
  const bool tries = its != trial.tries.end();
  const bool failed = Is(core, member, trial.version, fleet::ResidencyState::kFailed);
  if (tries && (its->second.revoked.has_value() || !failed)) return false;
  // A member that was slow, or has no slot, replaces nobody, or they would take turns for ever.
  const bool no_better = IsSlow(core, trial, member) || HasNoSlot(core, member, trial.version);
  if (trial.goes_on && no_better) return false;
  // A member that has failed tries again only while nobody else tries (EndTries).
  return !failed || trial.tries.size() == (tries ? 1 : 0);
}

// If the last search found nobody, only members that changed since (`visit`) are looked at.
const Member* BestOf(const Core& core, const Question& question, const Trial& trial,
                     const Visit& visit) {
  const Member* best = nullptr;
  for (const Member* member :
       MembersOf(core, question, trial, trial.nobody ? visit : Visit{.whole = true})) {
    if (!MayTry(core, question, trial, *member)) continue;
    const bool better = best == nullptr || RankOf(core, question, trial, *member) <
                                               RankOf(core, question, trial, *best);
    if (better) best = member;
  }
  return best;
}

// Whether the member may think that it is permitted to load the version. Until it has answered its
// newest document, an earlier one may permit it.
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

// Whether its leave (GroupVerdict::leave) is off the record: it was ended, here or by verdicts.cc.
bool IsOver(const Core& core, const Question& question, const MemberId& member) {
  return !VerdictOf(core, question.group, question.version).leave.contains(member);
}

// Whether the member will report if its engine dies in the try: it still has its journal of then.
bool Tells(const Core& core, const Question& question, const Member& member) {
  const auto& leave = VerdictOf(core, question.group, question.version).leave;
  const auto its = leave.find(member.id);
  return its != leave.end() && its->second.journal == member.record.journal;
}

bool HasWaited(const Core& core, const Try& its, int64_t ms) {
  return its.revoked.has_value() && core.now - *its.revoked >= ms;
}

// Whether nothing more can come of a revoked try: the member has heard that it must not load, and
// its engine runs, or was away for so long that its death would be reported by now. With a new
// journal it may have asked for a load that it does not remember: that gets the time to end. A
// WEDGED engine loads nothing before its restart, which ends the leave: its member need not hear.
bool HasAnswered(const Core& core, const Question& question, const Member& member,
                 const Trial& trial, const Try& its) {
  if (!its.revoked.has_value() || !member.observed.has_value()) return false;
  const bool is_wedged = member.observed->health == fleet::MemberHealth::kWedged;
  if (is_wedged && Tells(core, question, member)) return true;
  if (HasLeave(core, member, trial.version)) return false;
  const bool is_there = !member.observed->boot.empty();
  if (!Tells(core, question, member)) return is_there && HasWaited(core, its, kLoadEndsMs);
  return is_there || HasWaited(core, its, core.config.lost_after_ms);
}

// Whether nobody can say what came of the try: no member, or no engine and a new journal.
bool IsUntold(const Core& core, const Question& question, const Member& member, const Try& its) {
  if (IsGone(core, member)) return true;
  const bool is_away = member.observed.has_value() && member.observed->boot.empty();
  return is_away && !Tells(core, question, member) &&
         HasWaited(core, its, core.config.lost_after_ms);
}

// A try that was revoked still counts until the member has answered that it must not try again.
void EndTries(Core& core, const Question& question, Trial& trial) {
  const bool alone = trial.tries.size() == 1;
  for (auto it = trial.tries.begin(); it != trial.tries.end();) {
    const Member& member = core.members.at(it->first);
    Try& its = it->second;
    const bool loads = Is(core, member, trial.version, fleet::ResidencyState::kLoading);
    const bool failed = Is(core, member, trial.version, fleet::ResidencyState::kFailed);
    if ((failed && !alone) || !TakesPart(core, question, trial, member)) Revoke(core, its);
    const bool is_untold = IsUntold(core, question, member, its);
    const bool gives_up = !loads && HasAnswered(core, question, member, trial, its);
    const bool is_over = IsOver(core, question, member.id);
    if (is_untold && !is_over) {
      LoseLeave(core, question.group, question.version, member.id);
    } else if (gives_up && !is_over) {
      EndLeave(core, question.group, question.version, member.id);
    }
    it = is_over || is_untold || gives_up ? trial.tries.erase(it) : std::next(it);
  }
}

// A member that said goodbye while it loaded keeps its leave until the load must have ended.
void EndLeft(Core& core, const Question& question, Trial& trial) {
  std::erase_if(trial.left, [&](const auto& its) {
    const auto& leave = VerdictOf(core, question.group, question.version).leave;
    const auto known = leave.find(its.first);
    if (known == leave.end() || !known->second.left) return true;
    if (core.now - its.second < kLoadEndsMs) return false;
    EndLeave(core, question.group, question.version, its.first);
    return true;
  });
}

// Whether the member reports that its engine loads the version, and so may end because of it,
// whether or not it was told to try: IsAffordable counts each such engine only once.
bool IsAtRisk(const Core& core, const Question& question, const Trial& trial,
              const Member& member) {
  const PoolId id{question.version.adapter, member.placed_in.first};
  return member.placed_in.second == question.group && trial.wanted_by.contains(id) &&
         !IsGone(core, member) && Is(core, member, trial.version, fleet::ResidencyState::kLoading);
}

void AssessRisk(const Core& core, const Question& question, Trial& trial, const Visit& visit) {
  if (visit.whole) trial.at_risk.clear();
  for (const Member* member : MembersOf(core, question, trial, visit)) {
    ++core.work.members;
    if (IsAtRisk(core, question, trial, *member)) {
      trial.at_risk.insert(member->id);
    } else {
      trial.at_risk.erase(member->id);
    }
  }
}

// Whether one more may try: at worst Config::deaths_limit engines end, that one included, and each
// counts once: what hung and loads it still is spent already.
bool IsAffordable(const Core& core, const Question& question, const Trial& trial) {
  const GroupVerdict& verdict = VerdictOf(core, question.group, question.version);
  size_t lives = LivesSpent(verdict) + trial.left.size();
  for (const auto& [id, its] : trial.tries) lives += trial.at_risk.contains(id) ? 0 : 1;
  for (const MemberId& id : trial.at_risk)
    lives += HasHung(verdict, id, core.members.at(id).observed->boot) ? 0 : 1;
  return lives < core.config.deaths_limit;
}

// Revokes the tries that are not loading yet, and notes which members were slow. `next` then tries
// beside the rest, if one more engine may be risked.
void GiveWay(Core& core, const Question& question, Trial& trial, const Member& next) {
  for (auto& [id, its] : trial.tries) {
    if (its.revoked.has_value()) continue;
    const Member& member = core.members.at(id);
    const bool is_slow = !Is(core, member, trial.version, fleet::ResidencyState::kFailed) &&
                         !HasNoSlot(core, member, trial.version);
    if (is_slow) trial.slow[id] = StateOf(core, member, trial.version);
    if (!Is(core, member, trial.version, fleet::ResidencyState::kLoading)) Revoke(core, its);
  }
  if (!IsAffordable(core, question, trial)) return;
  trial.tries[next.id] = Try{core.now};
  GiveLeave(core, question.group, question.version, next);
}

// Whether another should try: nobody does, or all that do are slow, full, failed or revoked.
bool IsStuck(const Core& core, const Question& question, const Trial& trial) {
  const int64_t patience = PatienceOf(core, question.version.adapter);
  const auto is_stuck = [&](const auto& its) {
    const Member& member = core.members.at(its.first);
    return its.second.revoked.has_value() || core.now - its.second.since >= patience ||
           HasNoSlot(core, member, trial.version) ||
           Is(core, member, trial.version, fleet::ResidencyState::kFailed);
  };
  return std::ranges::all_of(trial.tries, is_stuck);
}

bool GoesOn(const Core& core, const Trial& trial) {
  return std::ranges::any_of(trial.tries, [&](const auto& its) {
    return !its.second.revoked.has_value() &&
           !Is(core, core.members.at(its.first), trial.version, fleet::ResidencyState::kFailed);
  });
}

std::optional<Tick> DueAt(const Core& core, const Question& question, const Trial& trial) {
  FirstAfter due(core.now);
  for (const auto& [member, its] : trial.tries) {
    due.At(its.since + PatienceOf(core, question.version.adapter));
    if (!its.revoked.has_value()) continue;
    due.At(*its.revoked + core.config.lost_after_ms);
    due.At(*its.revoked + kLoadEndsMs);
  }
  for (const auto& [member, since] : trial.left) due.At(since + kLoadEndsMs);
  return due.first();
}

void AdvanceTrial(Core& core, const Question& question, Trial& trial, const Visit& visit) {
  const std::map<MemberId, Try> before = trial.tries;
  EndTries(core, question, trial);
  EndLeft(core, question, trial);
  AssessRisk(core, question, trial, visit);
  const bool went_on = std::exchange(trial.goes_on, GoesOn(core, trial));
  if (trial.tries != before || visit.whole || trial.goes_on != went_on) trial.nobody = false;
  // With no try under way, and no engine left that may be risked, nobody is next.
  const bool may_go_on = !trial.tries.empty() || IsAffordable(core, question, trial);
  if (may_go_on && IsStuck(core, question, trial)) {
    const Member* next = BestOf(core, question, trial, visit);
    trial.nobody = next == nullptr;
    // If `next` tries already, it has failed and nobody else can try: it just goes on.
    if (next != nullptr && !trial.tries.contains(next->id)) GiveWay(core, question, trial, *next);
  } else {
    trial.nobody = false;  // nobody was looked for
  }
  core.trial_due.Set(question, DueAt(core, question, trial));
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

// Adds what somebody may still try though nobody wants it, by leave from an earlier reign (start of
// the orchestrator), or from before it was LOST.
void AskWhatIsTried(const Core& core, const AdapterName& adapter,
                    std::map<Question, Trial>& asked) {
  for (auto it = core.verdicts.lower_bound({adapter, RunId(), VersionNumber()});
       it != core.verdicts.end() && it->first.adapter == adapter; ++it) {
    const VersionInfo* info = core.FindVersion(it->first);
    if (info == nullptr) continue;
    for (const auto& [group, verdict] : it->second.groups) {
      const bool is_tried =
          std::ranges::any_of(verdict.leave, [](const auto& its) { return !its.second.lost; });
      if (is_tried) asked[{it->first, group}].version = *info;
    }
  }
}

// Every version of the adapter that some pool wants, in every group of its members that has no
// verdict on it.
std::map<Question, Trial> WhatIsOpen(const Core& core, const AdapterName& adapter) {
  std::map<Question, Trial> asked;
  for (auto it = core.pools.lower_bound({adapter, PoolName()});
       it != core.pools.end() && it->first.adapter == adapter; ++it) {
    const auto& [id, pool] = *it;
    const fleet::AdapterPolicy* policy = core.FindPolicy(id);
    if (policy == nullptr) continue;
    if (pool.sync.has_value()) Ask(core, id, pool.sync->version.key, false, asked);
    const std::vector<Activation>& history = pool.record.history;
    const size_t window = std::min<size_t>(history.size(), policy->KeepCount());
    for (size_t i = history.size() - window; i < history.size(); ++i)
      Ask(core, id, history[i].version.key, true, asked);
    for (auto alias = core.aliases.lower_bound({adapter, AliasName()});
         alias != core.aliases.end() && alias->first.first == adapter; ++alias) {
      Ask(core, id, alias->second, true, asked);
    }
  }
  for (const LeaseRecord* lease : core.LeasesBelow(LeaseKeyPrefix(adapter))) {
    const PoolId id{adapter, lease->pool};
    if (core.pools.contains(id)) Ask(core, id, lease->version.key, true, asked);
  }
  return asked;
}

Question FirstQuestionOf(const AdapterName& adapter) {
  return {{adapter, RunId(), VersionNumber()}, EngineGroup()};
}

// Takes up the tries of members that have leave on record but no try here: an earlier reign gave it
// to them, or they had it before they were LOST.
void GoOn(Core& core, const Question& question, Trial& trial) {
  const auto given = VerdictOf(core, question.group, question.version).leave;
  for (const auto& [member, leave] : given) {
    if (leave.lost || trial.tries.contains(member)) continue;
    if (leave.left) {
      trial.left.try_emplace(member, core.now);
    } else if (core.members.contains(member)) {
      trial.tries[member] = Try{core.now};
      core.changed.Part(member, question.version.adapter);
    } else {
      LoseLeave(core, question.group, question.version, member);
    }
  }
}

void OpenTrials(Core& core, const AdapterName& adapter, bool looks_back) {
  std::map<Question, Trial> asked = WhatIsOpen(core, adapter);
  if (looks_back) AskWhatIsTried(core, adapter, asked);
  for (auto& [question, trial] : asked) {
    const auto known = core.trials.find(question);
    if (known != core.trials.end()) {
      trial.tries = std::move(known->second.tries);
      trial.left = std::move(known->second.left);
      trial.slow = std::move(known->second.slow);
    } else {
      LookBack(core, question.group, trial.version);
    }
    GoOn(core, question, trial);
  }
  // No try begins for what has a verdict or is not wanted any more. Members that were told to try
  // may not have heard of that yet: the trial stays until they have (EndTries).
  const auto is_tried = [&](const Question& question, const Trial& trial) {
    const Verdict known = VerdictOf(core, question.group, question.version).verdict;
    return known != Verdict::kProven && !trial.tries.empty();
  };
  for (auto it = asked.begin(); it != asked.end();) {
    auto& [question, trial] = *it;
    const bool open = VerdictOf(core, question.group, question.version).verdict == Verdict::kOpen;
    if (!open) trial.wanted_by.clear();
    it = open || is_tried(question, trial) ? std::next(it) : asked.erase(it);
  }
  for (auto it = core.trials.lower_bound(FirstQuestionOf(adapter));
       it != core.trials.end() && it->first.version.adapter == adapter;
       it = core.trials.erase(it)) {
    auto& [question, trial] = *it;
    if (asked.contains(question)) continue;
    for (const auto& [member, its] : trial.tries) core.changed.Part(member, adapter);
    core.trial_due.Clear(question);
    trial.wanted_by.clear();
    if (is_tried(question, trial)) asked.emplace(question, std::move(trial));
  }
  core.trials.merge(asked);
  core.changed.trials.adapters.insert(adapter);
}

std::set<AdapterName> WhatToAsk(const Core& core, Changes::Adapters changed) {
  if (!changed.all) return std::move(changed.some);
  std::set<AdapterName> all;
  for (const auto& [id, pool] : core.pools) all.insert(id.adapter);
  for (const auto& [question, trial] : core.trials) all.insert(question.version.adapter);
  // Somebody may still try a version of an adapter that is gone, by leave from before.
  for (const auto& [version, record] : core.verdicts) all.insert(version.adapter);
  return all;
}

// The trials to look at, by what changed.
std::map<Question, Visit> WhatToVisit(Core& core) {
  std::map<Question, Visit> visits = VisitsOf(
      std::exchange(core.changed.trials, {}), core.trials, &FirstQuestionOf,
      [](const Question& question) -> const AdapterName& { return question.version.adapter; });
  for (const Question& question : core.trial_due.TakeDue(core.now)) visits[question].whole = true;
  return visits;
}

}  // namespace

Permission PermissionOf(const Core& core, const Member& member, const VersionInfo& version,
                        const GroupVerdict& verdict) {
  // What an engine has loaded it keeps, whatever the verdict.
  if (Is(core, member, version, fleet::ResidencyState::kLoaded)) return Permission::kLoad;
  if (IsBarred(core, verdict, member.id)) return Permission::kNo;
  if (verdict.verdict == Verdict::kProven) return Permission::kLoad;
  const auto trial = core.trials.find({version.key, member.group});
  if (trial == core.trials.end()) return Permission::kFetch;
  const auto its = trial->second.tries.find(member.id);
  const bool may = its != trial->second.tries.end() && !its->second.revoked.has_value();
  return may ? Permission::kLoad : Permission::kFetch;
}

void AdvanceTrials(Core& core) {
  if (core.footing != Footing::kSettled || !IsGathered(core)) return;
  const Changes::Adapters changed = std::exchange(core.changed.asked, {.all = false});
  for (const AdapterName& adapter : WhatToAsk(core, changed))
    OpenTrials(core, adapter, changed.all);
  for (const auto& [question, visit] : WhatToVisit(core)) {
    const auto it = core.trials.find(question);
    AdvanceTrial(core, question, it->second, visit);
    if (!it->second.wanted_by.empty() || !it->second.tries.empty()) continue;
    core.trial_due.Clear(question);
    core.trials.erase(it);
  }
}

}  // namespace lorry::sync
