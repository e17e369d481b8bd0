#include "services/sync_orchestrator/machine/verdicts.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lib/base/error.h"
#include "services/sync_orchestrator/machine/keys.h"
#include "services/sync_orchestrator/machine/roster.h"
#include "services/sync_orchestrator/machine/tables.h"

namespace lorry::sync {
namespace {

// A version is REFUSED once two members have reported a refusal, or one has reported three.
constexpr size_t kRefusingMembers = 2;
constexpr uint32_t kRefusalsOfOne = 3;

GroupVerdict& Of(Core& core, const EngineGroup& group, const VersionKey& version) {
  VerdictRecord& record = core.verdicts[version];
  record.version = version;
  return record.groups[group];
}

void Save(Core& core, const VersionKey& version) {
  core.Save(VerdictKey(version), core.verdicts.at(version));
}

// Saves a change of `leave` without having anything planned anew: only its own trial uses it.
void SaveQuietly(Core& core, const VersionKey& version) {
  core.SaveQuietly(VerdictKey(version), core.verdicts.at(version));
}

uint32_t Deaths(const GroupVerdict& verdict) {
  uint32_t sum = 0;
  for (const auto& [member, count] : verdict.deaths) sum += count;
  return sum;
}

// Moves the verdict to where the table says. False: the event means nothing in its present state.
bool Move(Core& core, GroupVerdict& verdict, VerdictEvent event) {
  const VerdictTransition* row = Take(VerdictTable(), core.taken.verdict, verdict.verdict, event);
  if (row == nullptr) return false;
  verdict.verdict = row->to;
  return true;
}

// Moves the verdict by what the counts amount to now.
void Judge(Core& core, GroupVerdict& verdict) {
  const uint32_t limit = core.config.deaths_limit;
  // Where others of the group have loaded the version, the deaths of a single engine count against
  // that engine alone (IsBarred).
  const bool are_its_own = verdict.verdict == Verdict::kProven && verdict.deaths.size() < 2;
  if (Deaths(verdict) >= limit && !are_its_own) {
    Move(core, verdict, VerdictEvent::kDeaths);
  } else if (LivesSpent(verdict) >= limit) {
    Move(core, verdict, VerdictEvent::kLives);
  } else {
    Move(core, verdict, VerdictEvent::kReturned);
  }
  const bool insists =
      std::any_of(verdict.refusals.begin(), verdict.refusals.end(),
                  [](const auto& refusal) { return refusal.second.tries >= kRefusalsOfOne; });
  if (insists || verdict.refusals.size() >= kRefusingMembers)
    Move(core, verdict, VerdictEvent::kRefusals);
}

// --- for a version

// Whether the version is proven when this member has loaded it: its group has a trial of it, or
// the member has leave to try it. After a restart of the orchestrator there are no trials until the
// roster is gathered. If leave did not do, and the member were lost with its journal before that,
// it would be counted as an engine that the version cost, though it had loaded it.
bool IsTrial(const Core& core, const Member& member, const VersionKey& version) {
  return core.trials.contains({version, member.group}) ||
         VerdictOf(core, member.group, version).leave.contains(member.id);
}

void Prove(Core& core, const EngineGroup& group, const VersionKey& version,
           const EngineName& name) {
  GroupVerdict& verdict = Of(core, group, version);
  if (!Move(core, verdict, VerdictEvent::kLoaded)) return;
  verdict = GroupVerdict{.verdict = verdict.verdict, .deaths = std::move(verdict.deaths)};
  Save(core, version);
  // It is not the version's fault that other members failed to load it: they are excluded.
  for (const auto& [place, members] : core.places) {
    if (place.second != group) continue;
    for (const MemberId& id : members) {
      Member& member = core.members.at(id);
      const fleet::ObservedResidency* residency = ResidencyOf(member, name);
      if (residency != nullptr && residency->state == fleet::ResidencyState::kFailed)
        Exclude(core, member, name, WordsOf(*residency));
    }
  }
}

// --- against it

// How many of the deaths that the member's journal counts are counted here already.
uint32_t CountedOf(const VerdictRecord& record, const Member& member) {
  const auto reported = record.reported.find(member.id);
  if (reported == record.reported.end()) return 0;
  const auto& [journal, deaths] = reported->second;
  return journal.empty() || journal == member.record.journal ? deaths : 0;
}

struct Tried {
  EngineGroup group;
  BootId boot;
};

// Ends the member's leave, as it has told what came of its try. Returns what the leave was for.
std::optional<Tried> EndLeaveIn(VerdictRecord& record, const MemberId& member) {
  std::optional<Tried> tried;
  for (auto& [group, verdict] : record.groups) {
    const auto its = verdict.leave.extract(member);
    if (!its.empty()) tried = {group, its.mapped().boot};
  }
  return tried;
}

// Counts engines that died of it. If the engine of this boot was counted as hung before, that count
// goes back by one, as it is the same engine. Without a boot (the leave had ended already, when the
// engine hung) the death is taken to belong to the member's last try.
void AddDeaths(GroupVerdict& verdict, const MemberId& member, uint32_t deaths, const BootId& boot) {
  verdict.deaths[member] += deaths;
  const auto hung = verdict.hung.find(member);
  if (hung == verdict.hung.end() || (!boot.empty() && hung->second.boot != boot)) return;
  // The entry stays, even with 0 tries: a report may repeat that hang, and Blame must know it.
  if (hung->second.tries > 0) --hung->second.tries;
}

void CountDeaths(Core& core, const Member& member, const EngineGroup& group,
                 const VersionKey& version, uint32_t deaths) {
  const auto known = core.verdicts.find(version);
  const uint32_t before = known != core.verdicts.end() ? CountedOf(known->second, member) : 0;
  if (deaths <= before) return;
  std::optional<Tried> tried;
  if (known != core.verdicts.end()) tried = EndLeaveIn(known->second, member.id);
  // It is not known yet what kind of engine died: the death is counted once it is known.
  if (!tried.has_value() && group.empty()) return;
  if (!tried.has_value()) tried = {group, BootId()};
  VerdictRecord& record = core.verdicts[version];
  record.version = version;
  record.reported[member.id] = {member.record.journal, deaths};
  const uint32_t more = deaths - before;
  // An operator who restarts an engine excludes it first: such deaths count against nothing.
  if (!member.record.excluded) {
    GroupVerdict& verdict = record.groups[tried->group];
    AddDeaths(verdict, member.id, more, tried->boot);
    Judge(core, verdict);
  }
  Save(core, version);
}

void CountDeaths(Core& core, const Member& member, const EngineGroup& group) {
  for (const fleet::Killer& killer : member.observed->killers) {
    const auto named = core.named.find(killer.name);
    if (named == core.named.end()) continue;  // LookBack counts them
    CountDeaths(core, member, group, named->second, killer.deaths);
  }
}

// Counts a failure against a version that is OPEN. `is_new`: an earlier report of this session did
// not have it. Otherwise it counts only if no failure of this kind is counted for this member yet,
// as that may be the same one.
void Blame(Core& core, const Member& member, const VersionKey& version,
           const fleet::ObservedResidency& residency, bool is_new) {
  const GroupVerdict& before = VerdictOf(core, member.group, version);
  const bool refused = residency.failure == fleet::Failure::kRefused;
  const bool hung = residency.failure == fleet::Failure::kEngineHung;
  const bool misfit = residency.failure == fleet::Failure::kMisfit;
  if (!refused && !hung && !misfit)
    return;  // the member's own, or a death, which is counted as one
  const bool counted =
      (refused && before.refusals.contains(member.id)) || (hung && before.hung.contains(member.id));
  if (counted && !is_new) return;
  GroupVerdict& verdict = Of(core, member.group, version);
  verdict.words = WordsOf(residency);
  if (refused || hung) {
    GroupVerdict::Tries& its = (refused ? verdict.refusals : verdict.hung)[member.id];
    its = {member.observed->boot, its.tries + 1};
  }
  // The member compared the version's shapes with the base model's. All of the group have the same
  // base model, so one report is enough.
  if (misfit) Move(core, verdict, VerdictEvent::kMisfit);
  Judge(core, verdict);
  Save(core, version);
}

void TakeFailure(Core& core, Member& member, const fleet::ObservedResidency& residency,
                 const VersionKey& version, bool is_new) {
  const Verdict known = VerdictOf(core, member.group, version).verdict;
  if (known == Verdict::kProven && is_new)
    return Exclude(core, member, residency.name, WordsOf(residency));
  if (known == Verdict::kOpen) Blame(core, member, version, residency, is_new);
}

bool Fails(const Core& core, const Member& member, const VersionKey& version) {
  if (member.failures.empty()) return false;
  const VersionInfo* info = core.FindVersion(version);
  return info != nullptr && member.observed.has_value() &&
         member.failures.contains(core.NameIn(*info, member.observed->limits.kind));
}

// Whether the member reports that the version's shapes do not fit the base model of its engine. It
// does not report that anew each time, so that what it said before the trial began counts as well.
bool IsUnfit(const Member& member, const EngineName& name) {
  const fleet::ObservedResidency* residency = ResidencyOf(member, name);
  return residency != nullptr && residency->state == fleet::ResidencyState::kFailed &&
         residency->failure == fleet::Failure::kMisfit;
}

// If this member's engine alone has refused a version, and was restarted since, it is asked again.
void ForgetRefusals(Core& core, const Member& member) {
  const BootId& boot = member.observed->boot;
  for (auto& [version, record] : core.verdicts) {
    const auto it = record.groups.find(member.group);
    if (boot.empty() || it == record.groups.end()) continue;
    const auto refusals = it->second.refusals.find(member.id);
    if (refusals == it->second.refusals.end() || refusals->second.boot == boot ||
        it->second.refusals.size() > 1) {
      continue;
    }
    it->second.refusals.clear();
    Move(core, it->second, VerdictEvent::kRestarted);
    Save(core, version);
  }
}

// Computes the engine names of the versions that the member may try. Its reports speak of versions
// by these names, and are understood only where the names were computed since this process began.
void NameWhatItTries(Core& core, const MemberId& member) {
  for (const auto& [version, record] : core.verdicts) {
    const bool is_tried = std::ranges::any_of(
        record.groups, [&](const auto& its) { return its.second.leave.contains(member); });
    const VersionInfo* info = is_tried ? core.FindVersion(version) : nullptr;
    if (info == nullptr) continue;
    for (const auto kind : {fleet::EngineKind::kSglang, fleet::EngineKind::kVllm})
      core.NameOf(*info, kind);
  }
}

// The member reports a running engine, which shows what came of its tries. If it is the boot that
// the leave was given for, the try may go on. If it is another boot, the try is over, and a member
// that still has its journal of that time has reported what the first boot died of. Without that
// journal the boot counts as dead of the version, unless an operator or a goodbye explains its end.
void JudgeLeave(Core& core, const Member& member) {
  const BootId& boot = member.observed->boot;
  if (boot.empty()) return;
  for (auto& [version, record] : core.verdicts) {
    for (auto& [group, verdict] : record.groups) {
      const auto it = verdict.leave.find(member.id);
      if (it == verdict.leave.end()) continue;
      const GroupVerdict::Leave leave = it->second;
      if (leave.boot == boot) {
        if (!leave.lost && !leave.left) continue;
        it->second.lost = it->second.left = false;
        core.changed.Groups();  // it may try again
      } else {
        verdict.leave.erase(it);
        const bool is_told =
            leave.journal == member.record.journal || member.record.excluded || leave.left;
        if (!is_told) AddDeaths(verdict, member.id, 1, leave.boot);
      }
      Judge(core, verdict);
      Save(core, version);
    }
  }
}

}  // namespace

EngineGroup GroupOf(const fleet::Observed& observed) {
  const fleet::EngineLimits& limits = observed.limits;
  return EngineGroup(absl::StrCat(
      std::string(fleet::ToString(limits.kind)), " ", observed.engine_version, " rank ",
      limits.rank_limit, " slots ", limits.slots, "/", limits.batch_slots, " modules ",
      absl::StrJoin(limits.engine_modules, ","), " base ",
      observed.base_model.has_value() ? peft::ToString(*observed.base_model) : "unknown"));
}

EngineGroup GroupOf(const Member& member) {
  const bool is_known = member.observed->limits.kind != fleet::EngineKind::kUnknown;
  return is_known ? GroupOf(*member.observed) : member.group;
}

const GroupVerdict& VerdictOf(const Core& core, const EngineGroup& group,
                              const VersionKey& version) {
  static const GroupVerdict kNothing;
  const auto record = core.verdicts.find(version);
  if (record == core.verdicts.end()) return kNothing;
  const auto verdict = record->second.groups.find(group);
  return verdict != record->second.groups.end() ? verdict->second : kNothing;
}

bool IsBar(const GroupVerdict& verdict) {
  return verdict.verdict != Verdict::kOpen && verdict.verdict != Verdict::kProven;
}

bool IsBarred(const Core& core, const GroupVerdict& verdict, const MemberId& member) {
  const auto deaths = verdict.deaths.find(member);
  const bool by_itself = verdict.verdict == Verdict::kProven && deaths != verdict.deaths.end() &&
                         deaths->second >= core.config.deaths_limit;
  return by_itself || IsBar(verdict);
}

bool IsBarred(const Core& core, const Member& member, const VersionKey& version) {
  return IsBarred(core, VerdictOf(core, member.group, version), member.id);
}

const GroupVerdict* GivenUp(const Core& core, const PoolId& id, const VersionKey& version) {
  const auto record = core.verdicts.find(version);
  if (record == core.verdicts.end()) return nullptr;
  const auto& groups = record->second.groups;
  if (std::none_of(groups.begin(), groups.end(), [](const auto& g) { return IsBar(g.second); }))
    return nullptr;
  const AdapterInfo* info = core.FindAdapter(id.adapter);
  if (info == nullptr) return nullptr;
  const GroupVerdict* bar = nullptr;
  uint32_t able = 0;
  uint32_t unable = 0;
  for (auto it = core.places.lower_bound({id.pool, EngineGroup()});
       it != core.places.end() && it->first.first == id.pool; ++it) {
    const GroupVerdict& verdict = VerdictOf(core, it->first.second, version);
    for (const MemberId& member_id : it->second) {
      const Member& member = core.members.at(member_id);
      // Whoever fails it is not able either, whether it is EXCLUDED for that just now or not.
      const bool fails = Fails(core, member, version);
      if (!fails && !IsCounted(core, member, info->policy)) continue;
      ++(fails || IsBarred(core, verdict, member_id) ? unable : able);
      if (IsBar(verdict)) bar = &verdict;
    }
  }
  const uint32_t needed = info->policy.min_engines.Of(able + unable);
  return able < needed && needed <= able + unable ? bar : nullptr;
}

uint32_t LivesSpent(const GroupVerdict& verdict) {
  uint32_t lives = Deaths(verdict);
  for (const auto& [member, its] : verdict.hung) lives += its.tries;
  for (const auto& [member, leave] : verdict.leave)
    lives += leave.lost && !HasHung(verdict, member, leave.boot) ? 1 : 0;
  return lives;
}

bool HasHung(const GroupVerdict& verdict, const MemberId& member, const BootId& boot) {
  const auto hung = verdict.hung.find(member);
  return hung != verdict.hung.end() && hung->second.boot == boot;
}

void GiveLeave(Core& core, const EngineGroup& group, const VersionKey& version,
               const Member& member) {
  Of(core, group, version).leave[member.id] = {member.observed->boot, member.record.journal};
  SaveQuietly(core, version);
}

void EndLeave(Core& core, const EngineGroup& group, const VersionKey& version,
              const MemberId& member) {
  if (Of(core, group, version).leave.erase(member) > 0) SaveQuietly(core, version);
}

// If the member has another journal now than when it was given leave, it cannot report what came of
// that try: the leave is not ended but counted as lost.
void EndLeaves(Core& core, const MemberId& id) {
  const Member& member = core.members.at(id);
  for (auto& [version, record] : core.verdicts) {
    const VersionInfo* info = core.FindVersion(version);
    const auto* its = info != nullptr ? ResidencyOf(core, member, *info) : nullptr;
    const bool loads = its != nullptr && its->state == fleet::ResidencyState::kLoading;
    for (auto& [group, verdict] : record.groups) {
      const auto leave = verdict.leave.find(id);
      if (leave == verdict.leave.end()) continue;
      if (leave->second.journal != member.record.journal) {
        LoseLeave(core, group, version, id);
      } else if (loads && !member.record.excluded) {
        leave->second.left = true;
        Save(core, version);
      } else {
        EndLeave(core, group, version, id);
      }
    }
  }
}

void LoseLeave(Core& core, const EngineGroup& group, const VersionKey& version,
               const MemberId& member) {
  GroupVerdict& verdict = Of(core, group, version);
  const auto its = verdict.leave.find(member);
  if (its == verdict.leave.end()) return;
  const auto known = core.members.find(member);
  if (known != core.members.end() && known->second.record.excluded)
    return EndLeave(core, group, version, member);
  its->second.lost = true;
  Judge(core, verdict);
  Save(core, version);
}

void TakeEvidence(Core& core, Member& member, const fleet::Observed* before) {
  const fleet::Observed& observed = *member.observed;
  // A death that is reported now is that of the engine which the member had before, and counts in
  // that engine's group. A proxy that has just started may not know its engine yet. If the member
  // had no group before either, the death is counted by a later report, unless the member has leave
  // for the version: that is on record under its group.
  const EngineGroup group = GroupOf(member);
  const bool is_new_boot = before == nullptr || before->boot != observed.boot;
  if (is_new_boot) NameWhatItTries(core, member.id);
  CountDeaths(core, member, member.group.empty() ? group : member.group);
  if (!group.empty()) Place(core, member, group);
  if (is_new_boot) {
    ForgetRefusals(core, member);
    JudgeLeave(core, member);
  }
  auto had = before != nullptr ? before->residencies.begin() : observed.residencies.end();
  const auto end = before != nullptr ? before->residencies.end() : had;
  for (const fleet::ObservedResidency& residency : observed.residencies) {
    while (had != end && had->name < residency.name) ++had;  // both are sorted
    const fleet::ObservedResidency* was =
        had != end && had->name == residency.name ? &*had : nullptr;
    const bool is_new = before != nullptr && (was == nullptr || was->state != residency.state);
    if (before != nullptr && !is_new) continue;
    const auto named = core.named.find(residency.name);
    if (named == core.named.end()) continue;
    if (residency.state == fleet::ResidencyState::kLoaded) {
      if (member.failures.erase(residency.name) > 0) NoteStanding(core, member);
      if (IsTrial(core, member, named->second))
        Prove(core, member.group, named->second, residency.name);
    } else if (residency.state == fleet::ResidencyState::kFailed && !member.record.excluded) {
      TakeFailure(core, member, residency, named->second, is_new);
    }
  }
}

void LookBack(Core& core, const EngineGroup& group, const VersionInfo& version) {
  EngineName loaded;
  const Member* unfit = nullptr;
  for (const auto& [place, members] : core.places) {
    if (place.second != group) continue;
    for (const MemberId& id : members) {
      const Member& member = core.members.at(id);
      const EngineName& name = core.NameOf(version, member.observed->limits.kind);
      CountDeaths(core, member, group);
      if (IsLoaded(member, name)) loaded = name;
      if (IsUnfit(member, name) && !member.record.excluded) unfit = &member;
    }
  }
  const auto leave = VerdictOf(core, group, version.key).leave;
  for (const auto& [id, its] : leave) {
    const auto member = core.members.find(id);
    if (member != core.members.end() && member->second.observed.has_value())
      CountDeaths(core, member->second, member->second.group);
  }
  if (VerdictOf(core, group, version.key).verdict != Verdict::kOpen) return;
  if (!loaded.empty()) return Prove(core, group, version.key, loaded);
  if (unfit == nullptr) return;
  const EngineName& name = core.NameOf(version, unfit->observed->limits.kind);
  Blame(core, *unfit, version.key, *ResidencyOf(*unfit, name), /*is_new=*/false);
}

void LookBackAtMember(Core& core, const Member& member) {
  for (const fleet::ObservedResidency& residency : member.observed->residencies) {
    const auto named = core.named.find(residency.name);
    if (named == core.named.end() || !IsUnfit(member, residency.name)) continue;
    if (VerdictOf(core, member.group, named->second).verdict == Verdict::kOpen)
      Blame(core, member, named->second, residency, /*is_new=*/false);
  }
}

void HandleVerdictLifted(Core& core, const VerdictLifted& event) {
  const auto record = core.verdicts.find(event.version);
  bool lifted = false;
  if (record != core.verdicts.end()) {
    auto& groups = record->second.groups;
    for (auto it = groups.begin(); it != groups.end();) {
      const bool moved = Move(core, it->second, VerdictEvent::kLifted);
      const auto forgiven = std::erase_if(it->second.deaths, [&](const auto& its) {
        return IsBarred(core, it->second, its.first);
      });
      it = moved ? groups.erase(it) : std::next(it);  // what was counted is forgotten
      lifted = lifted || moved || forgiven > 0;
    }
  }
  if (lifted) Save(core, event.version);
  core.replies.push_back(Reply{event.request,
                               lifted ? absl::OkStatus()
                                      : Error(absl::StatusCode::kNotFound, "VERDICT_UNKNOWN",
                                              absl::StrCat("no verdict keeps engines from loading ",
                                                           ToString(event.version))),
                               {},
                               {}});
}

}  // namespace lorry::sync
