#include "services/sync_orchestrator/machine/roster.h"

#include <algorithm>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/a_few.h"
#include "lib/base/error.h"
#include "lib/base/first_after.h"
#include "lib/fleet/quiesce.h"
#include "services/sync_orchestrator/machine/adoption.h"
#include "services/sync_orchestrator/machine/desired.h"
#include "services/sync_orchestrator/machine/keys.h"
#include "services/sync_orchestrator/machine/leaving.h"
#include "services/sync_orchestrator/machine/verdicts.h"

namespace lorry::sync {
namespace {

// How many times lost_after_ms a reign waits, at most, for members of the roster that come and go.
constexpr int64_t kGatherFactor = 2;

void NoteReadiness(Core& core, Member& member) {
  MemberRecord& record = member.record;
  const BootId& boot = member.observed->boot;
  const bool is_new = !boot.empty() && boot != record.boot;
  const bool is_ready = !boot.empty() && member.observed->health == fleet::MemberHealth::kReady;
  if (is_new) {
    record.boot = boot;
    record.was_ready_before = std::exchange(record.was_ready, false);
  }
  const bool now_ready = is_ready && !std::exchange(record.was_ready, record.was_ready || is_ready);
  if (is_new || now_ready) core.Save(MemberKey(member.id), record);
}

// A pause that the member has reported counts as holding until it reports none.
void NotePause(const Core& core, Member& member, const fleet::Observed* was) {
  if (member.observed->paused.has_value() || (was != nullptr && was->paused.has_value()))
    member.paused_until = core.now;
}

bool IsWanted(const Member& member, const EngineName& name) {
  const std::optional<VersionKey> key = fleet::KeyOfEngineName(name);
  const auto part = member.desired.parts.find(key.has_value() ? key->adapter : AdapterName());
  return part != member.desired.parts.end() &&
         std::ranges::count(part->second->wanted, name, &fleet::WantedVersion::name) > 0;
}

const AdapterName& AdapterOf(const fleet::ObservedRow& row) { return row.adapter; }
const AdapterName& AdapterOf(const fleet::ObservedResidency& residency) {
  return residency.key.adapter;
}
const AdapterName& KeyOf(const fleet::ObservedRow& row) { return row.adapter; }
const EngineName& KeyOf(const fleet::ObservedResidency& residency) { return residency.name; }

// Of two sorted lists: the adapters whose elements differ, or are in one of the lists alone.
template <typename T>
void Compare(const std::vector<T>& a, const std::vector<T>& b, std::set<AdapterName>& differ) {
  auto x = a.begin();
  auto y = b.begin();
  while (x != a.end() || y != b.end()) {
    if (y == b.end() || (x != a.end() && KeyOf(*x) < KeyOf(*y))) {
      differ.insert(AdapterOf(*x++));
    } else if (x == a.end() || KeyOf(*y) < KeyOf(*x)) {
      differ.insert(AdapterOf(*y++));
    } else {
      if (*x != *y) differ.insert({AdapterOf(*x), AdapterOf(*y)});
      ++x, ++y;
    }
  }
}

// Notes what a report changes: where the member says something new of itself, all that depends on
// the member; otherwise what depends on it for the adapters of which it says something new.
void NoteChanges(Core& core, const Member& member, const fleet::Observed& was) {
  const auto itself = [](const fleet::Observed& o) {
    return std::tie(o.boot, o.term, o.health, o.health_detail, o.limits, o.engine_version,
                    o.base_model, o.killers);
  };
  const fleet::Observed& is = *member.observed;
  if (itself(is) != itself(was)) core.changed.Member(member.id);
  std::set<AdapterName> differ;
  Compare(was.rows, is.rows, differ);
  Compare(was.residencies, is.residencies, differ);
  for (const AdapterName& adapter : differ) core.changed.Part(member.id, adapter);
}

// The failure for which the member is EXCLUDED the longest; null where it is not EXCLUDED for any.
const MemberFailure* ExcludedFor(const Core& core, const Member& member) {
  const MemberFailure* longest = nullptr;
  for (const auto& [name, failure] : member.failures) {
    const bool excludes = core.now < failure.until;
    if (excludes && (longest == nullptr || failure.until > longest->until)) longest = &failure;
  }
  return longest;
}

bool IsStored(const Core& core, const EngineName& name) {
  const auto named = core.named.find(name);
  return named != core.named.end() && core.versions.contains(named->second);
}

template <fleet::MemberHealth kHealth>
bool IsSaidToBe(const Core&, const Member& member) {
  return member.observed->health == kHealth;
}

void EndIt(Core& core, SessionId session, std::string_view reason, const std::string& message) {
  core.effects.emplace_back(
      EndSession{session, Error(absl::StatusCode::kFailedPrecondition, reason, message)});
}

// Whether a member of this roster knows of a later reign, or of a later sync, decided or not: then
// it is the records of this one that are not the last. Its rows are of the pool that it opens a
// session for, also where these records say another: a proxy forgets those of the pool that it
// leaves.
bool RemembersMore(const Core& core, const SessionOpened& event) {
  const auto it = core.members.find(event.member);
  const fleet::Observed& observed = event.observed;
  if (it == core.members.end() || it->second.record.journal != observed.journal) return false;
  if (observed.term > core.meta.term) return true;
  // Records that were restored twice give a reign the number of another one, whose documents the
  // member would take for later than those of this reign.
  if (observed.term == core.meta.term && observed.revision > it->second.desired.revision)
    return true;
  return std::ranges::any_of(observed.rows, [&](const fleet::ObservedRow& row) {
    const auto pool = core.pools.find({row.adapter, event.pool});
    const Epoch known = pool != core.pools.end() ? pool->second.record.epoch : core.meta.floor;
    return row.incarnation == core.meta.term.incarnation &&
           std::max(row.epoch, row.barrier) > known;
  });
}

template <typename T, typename Key, typename Get>
const T* Find(const std::vector<T>& sorted, const Key& key, Get get) {
  const auto it = std::lower_bound(sorted.begin(), sorted.end(), key,
                                   [&](const T& item, const Key& k) { return get(item) < k; });
  return it != sorted.end() && get(*it) == key ? &*it : nullptr;
}

}  // namespace

void Place(Core& core, Member& member, const EngineGroup& group) {
  if (member.placed_in == std::pair(member.record.pool, group)) return;
  const auto old = core.places.find(member.placed_in);
  if (old != core.places.end() && old->second.erase(member.id) > 0 && old->second.empty()) {
    core.places.erase(old);
    core.changed.Groups();
  }
  member.group = group;
  member.placed_in = {member.record.pool, group};
  if (!group.empty()) {
    std::set<MemberId>& members = core.places[member.placed_in];
    if (members.empty()) core.changed.Groups();
    members.insert(member.id);
  }
  core.changed.Member(member.id);
}

void Exclude(Core& core, Member& member, const EngineName& name, const std::string& words) {
  MemberFailure& failure = member.failures[name];
  failure.until = core.now + core.Backoff(++failure.times);
  failure.words = Beginning(words);
  NoteStanding(core, member);
}

bool IsExpected(const Core& core, const Member& member) {
  return !member.record.dead && !member.session.has_value() &&
         core.now - member.lost_at < core.config.lost_after_ms;
}

bool IsGathered(const Core& core) { return core.gathered; }

Tick GatheredAt(const Core& core) {
  return core.began_at + kGatherFactor * core.config.lost_after_ms;
}

void HandleSessionOpened(Core& core, SessionOpened event) {
  if (!core.members.contains(event.member) && !MakeRoom(core)) {
    EndIt(core, event.session, "ROSTER_FULL",
          absl::StrCat("the roster has ", core.members.size(),
                       " members; declare those dead that will not come back"));
    return;
  }
  // While records may be lost every session is kept, and sent nothing, as what it reports may have
  // to be adopted.
  const bool is_certain = core.meta.worth == Worth::kSettled;
  if (is_certain && RemembersMore(core, event)) {
    LoseRecords(core);
  } else if (is_certain && event.observed.term > core.meta.term) {
    // The incarnation rises by an adoption alone, which these records know nothing of.
    const bool is_strange = event.observed.term.incarnation > core.meta.term.incarnation;
    EndIt(
        core, event.session, "TERM_FENCED",
        absl::StrCat("member ", event.member.value, " follows term ", ToString(event.observed.term),
                     ", this is ", ToString(core.meta.term),
                     is_strange ? ": these records are older than an adoption of this fleet "
                                  "(attach to the orchestrator that adopted it, or see Restore in "
                                  "docs/OPERATIONS.md, which needs the proxy's journal), or its "
                                  "journal is of another fleet (then remove the proxy's data "
                                  "directory and restart it)"
                                : "; attach to the current leader"));
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
    member.failures.clear();
  }
  // A proxy that was forgotten in this reign takes no document of a lower number than its last.
  if (is_new && event.observed.term == core.meta.term)
    member.desired.revision = event.observed.revision;
  member.record.pool = event.pool;
  member.record.journal = event.observed.journal;
  member.record.attached_term = core.meta.term.term;
  member.record.dead = false;
  member.observed = std::move(event.observed);
  member.heard_at = core.now;
  member.contact = std::move(event.contact);
  NoteGoodbye(core, member);
  NoteReadiness(core, member);
  NotePause(core, member, nullptr);
  NoteStanding(core, member);
  // Written even when nothing changed: only a write that is conditional on the term proves that
  // this leader still is one, and a stale leader must not serve a proxy that lost its journal.
  core.Save(MemberKey(event.member), member.record);
  member.served = true;
  member.desired.head.reset();  // whatever was sent before went to another session
  TakeEvidence(core, member, nullptr);
}

void HandleSessionLost(Core& core, const SessionLost& event) {
  const auto it = core.sessions.find(event.session);
  if (it == core.sessions.end()) return;
  Member& member = core.members.at(it->second);
  core.sessions.erase(it);
  member.session.reset();
  member.served = false;
  member.lost_at = core.now;
  core.leaving.erase(member.id);
  NoteStanding(core, member);
}

void HandleObserved(Core& core, MemberObserved event) {
  const auto it = core.sessions.find(event.session);
  if (it == core.sessions.end()) return;
  Member& member = core.members.at(it->second);
  if (event.observed.journal != member.record.journal) return;
  const fleet::Observed& before = *member.observed;
  if (event.observed.sequence <= before.sequence) return;  // overtaken on the way
  const fleet::Observed was = *std::exchange(member.observed, std::move(event.observed));
  member.heard_at = core.now;
  NoteChanges(core, member, was);
  NoteAnswer(core, member);
  NoteGoodbye(core, member);
  NoteReadiness(core, member);
  NotePause(core, member, &was);
  TakeEvidence(core, member, &was);
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
    member.failures.clear();
    if (member.observed.has_value()) {
      Place(core, member, GroupOf(member));
      LookBackAtMember(core, member);
    }
  }
  if (event.mark == MemberMark::kDead) {
    member.lost_at = core.now;
    Place(core, member, EngineGroup());
    DropDocument(core, member);
  }
  if (event.mark == MemberMark::kDead && member.session.has_value()) {
    // Its word that the door answers nobody is the operator's; if the proxy is alive after all it
    // attaches anew.
    core.sessions.erase(*member.session);
    EndIt(core, *member.session, "MEMBER_DEAD", "an operator declared this member dead");
    member.session.reset();
    member.served = false;
    core.leaving.erase(event.member);
  }
  NoteStanding(core, member);
  core.Save(MemberKey(event.member), member.record);
  core.replies.push_back(Reply{event.request, absl::OkStatus(), {}, {}});
}

void NoteStanding(Core& core, const Member& member) {
  core.changed.Member(member.id);
  FirstAfter due(core.now);
  if (!member.session.has_value()) due.At(member.lost_at + core.config.lost_after_ms);
  // What keeps the member from being forgotten may end without notice, so it is looked at now and
  // then.
  const Tick forget_at = member.lost_at + core.config.forget_ms;
  if (!member.session.has_value())
    due.At(core.now < forget_at ? forget_at : core.now + core.config.retry_max_ms);
  for (const auto& [name, failure] : member.failures) {
    // A failure that is over is forgotten as soon as nobody can ask for its version any more, which
    // is looked at now and then.
    const bool excludes = core.now < failure.until;
    due.At(excludes ? failure.until : core.now + core.config.retry_max_ms);
  }
  core.standing_due.Set(member.id, due.first());
  if (IsExpected(core, member)) {
    core.expected.insert(member.id);
  } else {
    core.expected.erase(member.id);
  }
}

void AdvanceRoster(Core& core) {
  TakeGoodbyes(core);
  for (const MemberId& id : core.standing_due.TakeDue(core.now)) {
    const auto it = core.members.find(id);
    if (it == core.members.end()) continue;
    Member& member = it->second;
    if (IsForgotten(core, member)) {
      Forget(core, id);
      continue;
    }
    std::erase_if(member.failures, [&](const auto& entry) {
      return core.now >= entry.second.until && !IsWanted(member, entry.first) &&
             !IsStored(core, entry.first);
    });
    NoteStanding(core, member);
  }
  if (core.gathered) return;
  core.gathered = core.expected.empty() || core.now >= GatheredAt(core);
  if (core.gathered) core.changed.All();
}

std::span<const StandingRule> StandingRules() {
  using enum MemberStanding;
  static constexpr StandingRule kRules[] = {
      {"an operator said that it is dead",
       [](const Core&, const Member& m) { return m.record.dead; }, kDead},
      {"without a session, not for long", &IsExpected, kJoining},
      {"without a session", [](const Core&, const Member& m) { return !m.session.has_value(); },
       kLost},
      {"an operator excluded it", [](const Core&, const Member& m) { return m.record.excluded; },
       kExcluded},
      {"its proxy says that it is not ready yet", &IsSaidToBe<fleet::MemberHealth::kJoining>,
       kJoining},
      {"its engine sleeps", &IsSaidToBe<fleet::MemberHealth::kAsleep>, kAsleep},
      {"its engine's registry hangs", &IsSaidToBe<fleet::MemberHealth::kWedged>, kWedged},
      {"it failed what others of its group have, not long ago",
       [](const Core& core, const Member& m) { return ExcludedFor(core, m) != nullptr; },
       kExcluded},
      {"no engine is there", [](const Core&, const Member& m) { return m.observed->boot.empty(); },
       kJoining},
      {"otherwise", [](const Core&, const Member&) { return true; }, kReady},
  };
  return kRules;
}

MemberStanding StandingOf(const Core& core, const Member& member) {
  return std::ranges::find_if(StandingRules(),
                              [&](const StandingRule& rule) { return rule.holds(core, member); })
      ->standing;
}

std::string StandingReason(const Core& core, const Member& member) {
  switch (StandingOf(core, member)) {
    case MemberStanding::kExcluded:
      return member.record.excluded ? member.record.excluded_why : ExcludedFor(core, member)->words;
    case MemberStanding::kJoining:
      if (!member.session.has_value()) return "waits for its proxy to attach";
      return member.observed->health_detail;
    case MemberStanding::kAsleep:
    case MemberStanding::kWedged:
      return member.observed->health_detail;
    default:
      return "";
  }
}

bool IsCounted(const Core& core, const Member& member, const fleet::AdapterPolicy& policy) {
  const bool can_rest = !member.observed.has_value() ||
                        fleet::CanQuiesce(member.observed->limits.kind, policy.quiesce);
  if (!can_rest) return false;
  switch (StandingOf(core, member)) {
    case MemberStanding::kReady:
      return true;
    case MemberStanding::kJoining:
      return member.record.was_ready || member.record.was_ready_before;
    default:
      return false;
  }
}

bool CanBeAsked(const Core& core, const Member& member, const VersionInfo& version) {
  const MemberStanding standing = StandingOf(core, member);
  if (standing != MemberStanding::kExcluded || member.record.excluded)
    return standing == MemberStanding::kReady;
  const auto failed = member.failures.find(core.NameIn(version, member.observed->limits.kind));
  const bool is_for_it = failed != member.failures.end() && core.now < failed->second.until;
  return !is_for_it && !member.observed->boot.empty();
}

const fleet::ObservedResidency* ResidencyIn(const fleet::Observed& observed,
                                            const EngineName& name) {
  return Find(observed.residencies, name,
              [](const fleet::ObservedResidency& r) -> const EngineName& { return r.name; });
}

const fleet::ObservedResidency* ResidencyOf(const Member& member, const EngineName& name) {
  return member.observed.has_value() ? ResidencyIn(*member.observed, name) : nullptr;
}

const fleet::ObservedResidency* ResidencyOf(const Core& core, const Member& member,
                                            const VersionInfo& version) {
  if (!member.observed.has_value()) return nullptr;
  return ResidencyIn(*member.observed, core.NameIn(version, member.observed->limits.kind));
}

uint32_t DeathsOf(const Core& core, const Member& member, const VersionInfo& version) {
  if (!member.observed.has_value() || member.observed->killers.empty()) return 0;
  const fleet::Killer* killer =
      Find(member.observed->killers, core.NameIn(version, member.observed->limits.kind),
           [](const fleet::Killer& k) -> const EngineName& { return k.name; });
  return killer != nullptr ? killer->deaths : 0;
}

std::string WordsOf(const fleet::ObservedResidency& residency) {
  const std::string reason = residency.reason.empty() ? "STAGING_FAILED" : residency.reason;
  return residency.detail.empty() ? reason : absl::StrCat(reason, ": ", residency.detail);
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
