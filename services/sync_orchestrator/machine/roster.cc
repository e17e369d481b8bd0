#include "services/sync_orchestrator/machine/roster.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "lib/base/error.h"
#include "services/sync_orchestrator/machine/keys.h"

namespace lorry::sync {
namespace {

void EndIt(Core& core, SessionId session, std::string_view reason, const std::string& message) {
  core.effects.push_back(
      EndSession{session, Error(absl::StatusCode::kFailedPrecondition, reason, message)});
}

// Whether the proxy knows of a reign that this one does not succeed. Over empty records another
// incarnation is what FleetAdopted is for, so the session stays, unserved.
bool KnowsALaterReign(const Core& core, const Term& theirs) {
  if (theirs.incarnation != core.meta.term.incarnation && !core.meta.settled) return false;
  return theirs > core.meta.term;
}

template <typename T, typename Key, typename Get>
const T* Find(const std::vector<T>& sorted, const Key& key, Get get) {
  const auto it = std::lower_bound(sorted.begin(), sorted.end(), key,
                                   [&](const T& item, const Key& k) { return get(item) < k; });
  return it != sorted.end() && get(*it) == key ? &*it : nullptr;
}

}  // namespace

void CountDeaths(Core& core, const Member& member) {
  for (const fleet::Killer& killer : member.observed->killers) {
    const auto named = core.named.find(killer.name);
    if (named == core.named.end()) continue;
    PoisonRecord& poison = core.poison[named->second];
    poison.version = named->second;
    uint32_t& known = poison.deaths[member.id];
    if (killer.deaths <= known) continue;
    known = killer.deaths;
    core.Save(PoisonKey(named->second), poison);
  }
}

void HandleSessionOpened(Core& core, const SessionOpened& event) {
  if (KnowsALaterReign(core, event.observed.term)) {
    EndIt(
        core, event.session, "TERM_FENCED",
        absl::StrCat("member ", event.member.value, " follows term ", ToString(event.observed.term),
                     ", this is ", ToString(core.meta.term), "; attach to the current leader"));
    return;
  }
  Member& member = core.members[event.member];
  const bool is_new = member.id.empty();
  if (member.session.has_value()) {
    if (member.record.journal != event.observed.journal) {
      EndIt(core, event.session, "ENGINE_CLAIMED",
            absl::StrCat("member ", event.member.value,
                         " is attached with another journal; give each proxy its own --member"));
      return;
    }
    core.sessions.erase(*member.session);
    EndIt(core, *member.session, "SESSION_REPLACED", "the same proxy has attached again");
  }
  member.id = event.member;
  member.session = event.session;
  core.sessions[event.session] = event.member;
  if (is_new || member.record.dead || member.record.journal != event.observed.journal) {
    member.excluded_reason.clear();
    member.failures = 0;
  }
  member.record.pool = event.pool;
  member.record.journal = event.observed.journal;
  member.record.attached_term = core.meta.term.term;
  member.record.dead = false;
  // Written even when nothing changed: only a write that is conditional on the term proves that
  // this leader still is one, and a stale leader must not serve a proxy that lost its journal.
  core.Save(MemberKey(event.member), member.record);
  member.served = true;
  member.desired.rows.clear();  // whatever was sent before went to another session
  member.desired.journal = JournalId();
  member.observed = event.observed;
  CountDeaths(core, member);
}

void HandleSessionLost(Core& core, const SessionLost& event) {
  const auto it = core.sessions.find(event.session);
  if (it == core.sessions.end()) return;
  Member& member = core.members.at(it->second);
  core.sessions.erase(it);
  member.session.reset();
  member.served = false;
  member.lost_at = core.now;
}

void HandleObserved(Core& core, const MemberObserved& event) {
  const auto it = core.sessions.find(event.session);
  if (it == core.sessions.end()) return;
  Member& member = core.members.at(it->second);
  if (event.observed.journal != member.record.journal) return;
  const fleet::Observed& before = *member.observed;
  if (event.observed.sequence <= before.sequence) return;  // overtaken on the way
  // Of a report, documents are computed from these alone.
  if (event.observed.boot != before.boot || event.observed.limits != before.limits ||
      event.observed.rows != before.rows) {
    ++core.changes;
  }
  member.observed = event.observed;
  CountDeaths(core, member);
}

void HandleMarked(Core& core, const MemberMarked& event) {
  const auto it = core.members.find(event.member);
  if (it == core.members.end()) {
    core.replies.push_back(
        Reply{event.request,
              Error(absl::StatusCode::kNotFound, "MEMBER_UNKNOWN",
                    absl::StrCat("no member ", event.member.value, " is on the roster")),
              {},
              {}});
    return;
  }
  Member& member = it->second;
  member.record.excluded = event.mark == MemberMark::kExcluded;
  member.record.excluded_why = event.mark == MemberMark::kExcluded ? event.why : "";
  member.record.dead = event.mark == MemberMark::kDead;
  if (event.mark == MemberMark::kIncluded) {
    member.excluded_reason.clear();
    member.failures = 0;
  }
  if (event.mark == MemberMark::kDead && member.session.has_value()) {
    // Its word that the door answers nobody is the operator's; if the proxy is alive after all it
    // attaches anew.
    core.sessions.erase(*member.session);
    EndIt(core, *member.session, "MEMBER_DEAD", "an operator declared this member dead");
    member.session.reset();
    member.served = false;
    member.lost_at = core.now;
  }
  core.Save(MemberKey(event.member), member.record);
  core.replies.push_back(Reply{event.request, absl::OkStatus(), {}, {}});
}

void AdvanceRoster(Core& core) {
  for (auto& [id, member] : core.members) {
    if (!member.excluded_reason.empty() && core.now >= member.excluded_until) {
      member.excluded_reason.clear();
    }
  }
}

MemberStanding StandingOf(const Core& core, const Member& member) {
  if (member.record.dead) return MemberStanding::kDead;
  if (!member.session.has_value()) return MemberStanding::kLost;
  if (member.record.excluded) return MemberStanding::kExcluded;
  switch (member.observed->health) {
    case fleet::MemberHealth::kJoining:
      return MemberStanding::kJoining;
    case fleet::MemberHealth::kAsleep:
      return MemberStanding::kAsleep;
    case fleet::MemberHealth::kWedged:
      return MemberStanding::kWedged;
    case fleet::MemberHealth::kReady:
      break;
  }
  if (!member.excluded_reason.empty() && core.now < member.excluded_until) {
    return MemberStanding::kExcluded;
  }
  return member.observed->boot.empty() ? MemberStanding::kJoining : MemberStanding::kReady;
}

std::string StandingReason(const Core& core, const Member& member) {
  switch (StandingOf(core, member)) {
    case MemberStanding::kExcluded:
      return member.record.excluded ? member.record.excluded_why : member.excluded_reason;
    case MemberStanding::kJoining:
    case MemberStanding::kAsleep:
    case MemberStanding::kWedged:
      return member.observed->health_detail;
    default:
      return "";
  }
}

const fleet::ObservedResidency* ResidencyOf(const Member& member, const EngineName& name) {
  if (!member.observed.has_value()) return nullptr;
  return Find(member.observed->residencies, name,
              [](const fleet::ObservedResidency& r) -> const EngineName& { return r.name; });
}

const fleet::ObservedRow* RowOf(const Member& member, const AdapterName& adapter) {
  if (!member.observed.has_value()) return nullptr;
  return Find(member.observed->rows, adapter,
              [](const fleet::ObservedRow& r) -> const AdapterName& { return r.adapter; });
}

bool IsLoaded(const Member& member, const EngineName& name) {
  const fleet::ObservedResidency* residency = ResidencyOf(member, name);
  return residency != nullptr && residency->state == fleet::ResidencyState::kLoaded;
}

std::string_view ToString(MemberStanding standing) {
  switch (standing) {
    case MemberStanding::kJoining:
      return "JOINING";
    case MemberStanding::kReady:
      return "READY";
    case MemberStanding::kAsleep:
      return "ASLEEP";
    case MemberStanding::kWedged:
      return "WEDGED";
    case MemberStanding::kExcluded:
      return "EXCLUDED";
    case MemberStanding::kLost:
      return "LOST";
    case MemberStanding::kDead:
      return "DEAD";
  }
  return "LOST";
}

}  // namespace lorry::sync
