#include "services/sync_orchestrator/machine/barrier.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/base/a_few.h"
#include "services/sync_orchestrator/machine/roster.h"

namespace lorry::sync {
namespace {

// What the member's door has said to this reign; null when nothing.
const fleet::ObservedRow* AnswerOf(const Core& core, const PoolId& id, const Member& member) {
  const bool is_to_this = member.observed.has_value() && member.observed->term == core.meta.term;
  return is_to_this ? RowOf(member, id.adapter) : nullptr;
}

void Count(const Core& core, const PoolId& id, Pool& pool, const Member& member) {
  Pool::Barrier& barrier = *pool.barrier;
  if (member.record.pool != id.pool || member.record.dead) return;
  const fleet::ObservedRow* row = AnswerOf(core, id, member);
  const Epoch epoch = pool.sync->epoch;
  if (row != nullptr && row->revoked == epoch) barrier.hold_ended = true;
  // A LOCKED row stays so when its session or its process ends. A row that was CLOSED when it was
  // asked counts as held: it admits nothing, and does not open before the decision. So does a row
  // that is LOCKED for an earlier epoch and has not heard that it was broken off.
  const bool is_locked = row != nullptr && row->mode == fleet::RowMode::kLocked;
  const bool has_answered = row != nullptr && (barrier.locks ? is_locked && row->barrier == epoch
                                                             : is_locked || row->barrier == epoch);
  if (!has_answered) barrier.waits_on.insert(member.id);
}

}  // namespace

void AskDoors(Core& core, const PoolId& id, Pool& pool, SyncPhase phase) {
  if (phase == SyncPhase::kHolding) pool.barrier = Pool::Barrier{.since = core.now};
  pool.barrier->locks = phase == SyncPhase::kLocking;
  CountDoors(core, id, pool, Visit{.whole = true});
}

void CountDoors(const Core& core, const PoolId& id, Pool& pool, const Visit& visit) {
  if (visit.whole) {
    pool.barrier->waits_on.clear();
    for (const auto& [member_id, member] : core.members) Count(core, id, pool, member);
    return;
  }
  for (const MemberId& member_id : visit.members) {
    pool.barrier->waits_on.erase(member_id);
    const auto it = core.members.find(member_id);
    if (it != core.members.end()) Count(core, id, pool, it->second);
  }
}

std::optional<SyncEvent> WhatDoorsDid(const Core& core, const Pool& pool, bool enough,
                                      int64_t deadline_ms) {
  const Pool::Barrier& barrier = *pool.barrier;
  if (barrier.hold_ended) return SyncEvent::kHoldEnded;
  if (barrier.waits_on.empty() && enough)
    return barrier.locks ? SyncEvent::kAllLocked : SyncEvent::kAllHold;
  if (core.now - barrier.since >= deadline_ms) return SyncEvent::kBarrierDeadline;
  return std::nullopt;
}

std::string WhoIsUnreachable(const Core& core, const PoolId& id, bool lost) {
  std::vector<std::string> names;
  for (const auto& [member_id, member] : core.members) {
    if (member.record.pool != id.pool || member.record.dead || member.session.has_value()) continue;
    if (!lost || !IsExpected(core, member)) names.push_back(member_id.value);
  }
  if (names.empty()) return "";
  return absl::StrCat(AFew(names), names.size() > 1 ? " have" : " has",
                      " no session: the door may still serve the old version. Bring it back, or "
                      "declare it dead once it answers nobody (`lorry mark MEMBER dead`)");
}

std::string WhoIsWaitedFor(const Core& core, const Pool& pool) {
  std::vector<std::string> names;
  for (const MemberId& id : pool.barrier->waits_on) {
    const auto it = core.members.find(id);
    if (it == core.members.end()) continue;
    const Member& member = it->second;
    std::string why;
    if (!member.session.has_value()) {
      why = "no session";
    } else if (const auto* row = RowOf(member, pool.sync->version.key.adapter); row != nullptr) {
      why = row->waits_for;
    }
    names.push_back(why.empty() ? id.value : absl::StrCat(id.value, " (", why, ")"));
  }
  if (!names.empty())
    return absl::StrCat("waits until these doors ",
                        pool.barrier->locks ? "lock: " : "hold: ", AFew(names));
  for (size_t i = 0; i < pool.tally.members.size(); ++i) {
    if (pool.tally.members[i] == Pool::Standing::kAway)
      names.push_back(pool.sync->members[i].member.value);
  }
  if (names.empty()) return "";
  return absl::StrCat("waits until these have a session again: ", AFew(names));
}

}  // namespace lorry::sync
