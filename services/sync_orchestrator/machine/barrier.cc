#include "services/sync_orchestrator/machine/barrier.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "services/sync_orchestrator/machine/roster.h"

namespace lorry::sync {
namespace {

constexpr size_t kNamed = 4;  // of a large fleet, enough to see what is wrong

// An answer to this reign about this epoch. A LOCKED row stays so over the end of its session and
// of its process; one that was CLOSED when it was asked holds nothing, and opens no more.
bool HasAnswered(const Core& core, const PoolId& id, const Pool& pool, const Member& member) {
  if (!member.observed.has_value() || member.observed->term != core.meta.term) return false;
  const fleet::ObservedRow* row = RowOf(member, id.adapter);
  if (row == nullptr || row->barrier != pool.sync->epoch) return false;
  return row->mode == fleet::RowMode::kLocked || !pool.barrier->locks;
}

void Count(const Core& core, const PoolId& id, Pool& pool, const MemberId& member_id) {
  Pool::Barrier& barrier = *pool.barrier;
  const auto it = core.members.find(member_id);
  const bool is_asked =
      it != core.members.end() && it->second.record.pool == id.pool && !it->second.record.dead;
  if (!is_asked || HasAnswered(core, id, pool, it->second)) {
    barrier.waits_on.erase(member_id);
  } else {
    barrier.waits_on.insert(member_id);
  }
  if (!is_asked || !it->second.observed.has_value()) return;
  const fleet::ObservedRow* row = RowOf(it->second, id.adapter);
  const bool ended = row != nullptr && row->revoked == pool.sync->epoch &&
                     it->second.observed->term == core.meta.term;
  barrier.hold_ended = barrier.hold_ended || ended;
}

}  // namespace

void AskDoors(Core& core, const PoolId& id, Pool& pool, SyncPhase phase) {
  if (phase == SyncPhase::kHolding) pool.barrier = Pool::Barrier{.since = core.now};
  pool.barrier->locks = phase == SyncPhase::kLocking;
  CountDoors(core, id, pool, true, {});
}

void CountDoors(const Core& core, const PoolId& id, Pool& pool, bool whole,
                const std::set<MemberId>& members) {
  if (whole) pool.barrier->waits_on.clear();
  if (whole) {
    for (const auto& [member, state] : core.members) Count(core, id, pool, member);
  } else {
    for (const MemberId& member : members) Count(core, id, pool, member);
  }
}

std::optional<SyncEvent> WhatDoorsDid(const Core& core, const Pool& pool, int64_t deadline_ms) {
  const Pool::Barrier& barrier = *pool.barrier;
  if (barrier.hold_ended) return SyncEvent::kHoldEnded;
  if (barrier.waits_on.empty()) return barrier.locks ? SyncEvent::kAllLocked : SyncEvent::kAllHold;
  if (core.now - barrier.since >= deadline_ms) return SyncEvent::kBarrierDeadline;
  return std::nullopt;
}

std::string WhoIsUnreachable(const Core& core, const PoolId& id, bool lost) {
  std::string names;
  size_t count = 0;
  for (const auto& [member_id, member] : core.members) {
    if (member.record.pool != id.pool || member.record.dead || member.session.has_value()) continue;
    if (lost && IsExpected(core, member)) continue;
    if (++count <= kNamed) absl::StrAppend(&names, count > 1 ? ", " : "", member_id.value);
  }
  if (count == 0) return "";
  if (count > kNamed) absl::StrAppend(&names, " and ", count - kNamed, " more");
  return absl::StrCat(names, count > 1 ? " have" : " has",
                      " no session: the door may still serve the old version. Bring it back, or "
                      "declare it dead once it answers nobody (`lorry mark MEMBER dead`)");
}

std::string WhoIsWaitedFor(const Core& core, const Pool& pool) {
  if (!pool.barrier.has_value()) return "";
  std::string out;
  size_t count = 0;
  for (const MemberId& id : pool.barrier->waits_on) {
    if (++count > kNamed) continue;
    const bool is_there = core.members.at(id).session.has_value();
    absl::StrAppend(&out, count > 1 ? ", " : "", id.value, is_there ? "" : " (no session)");
  }
  if (count == 0) return "";
  if (count > kNamed) absl::StrAppend(&out, " and ", count - kNamed, " more");
  return absl::StrCat("waits until these doors ", pool.barrier->locks ? "lock: " : "hold: ", out);
}

}  // namespace lorry::sync
