#include "services/sync_orchestrator/machine/leaving.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "services/sync_orchestrator/machine/desired.h"
#include "services/sync_orchestrator/machine/keys.h"
#include "services/sync_orchestrator/machine/roster.h"
#include "services/sync_orchestrator/machine/verdicts.h"

namespace lorry::sync {
namespace {

// Whether all doors of the pool have to be asked before something is decided: by a policy, or by a
// sync that began under an earlier one.
bool HasBarriers(const Core& core, const PoolName& pool) {
  const auto is_policy = [&](const auto& entry) {
    const fleet::AdapterPolicy& policy = entry.second.policy;
    return policy.mode == fleet::SyncMode::kBarrier && policy.pools.contains(pool);
  };
  const auto is_sync = [&](const auto& entry) {
    const std::optional<SyncRecord>& sync = entry.second.sync;
    return entry.first.pool == pool && sync.has_value() && sync->mode == fleet::SyncMode::kBarrier;
  };
  return std::ranges::any_of(core.adapters, is_policy) || std::ranges::any_of(core.pools, is_sync);
}

// The door of a LOST member may still be answering, which matters to a barrier: there it takes an
// operator's word that it does not. While records may be lost nobody is forgotten.
bool MayBeForgotten(const Core& core, const Member& member) {
  if (core.footing != Footing::kSettled) return false;
  if (member.record.dead) return true;
  const bool is_lost = !member.session.has_value() && !IsExpected(core, member);
  return is_lost && !HasBarriers(core, member.record.pool);
}

}  // namespace

bool IsForgotten(const Core& core, const Member& member) {
  return core.now - member.lost_at >= core.config.forget_ms && MayBeForgotten(core, member);
}

void Forget(Core& core, const MemberId& id) {
  Member& member = core.members.at(id);
  for (auto& [question, trial] : core.trials) {
    trial.tries.erase(id);
    trial.slow.erase(id);
    trial.at_risk.erase(id);
    trial.nobody = false;
  }
  Place(core, member, EngineGroup());
  DropDocument(core, member);
  if (member.session.has_value()) core.sessions.erase(*member.session);
  core.resend.Clear(id);
  core.standing_due.Clear(id);
  core.expected.erase(id);
  core.Erase(MemberKey(id));
  core.members.erase(id);
}

bool MakeRoom(Core& core) {
  if (core.members.size() < core.config.members_limit) return true;
  const Member* oldest = nullptr;
  for (const auto& [id, member] : core.members) {
    if (oldest != nullptr && oldest->lost_at <= member.lost_at) continue;
    if (MayBeForgotten(core, member)) oldest = &member;
  }
  if (oldest == nullptr) return false;
  Forget(core, MemberId(oldest->id));
  return true;
}

void TakeGoodbyes(Core& core) {
  if (core.footing != Footing::kSettled) return;
  for (const MemberId& id : std::exchange(core.leaving, {})) {
    const SessionId session = *core.members.at(id).session;
    EndLeaves(core, id);
    Forget(core, id);
    core.effects.emplace_back(EndSession{session, absl::OkStatus()});
  }
}

void NoteGoodbye(Core& core, const Member& member) {
  if (member.observed->leaves) {
    core.leaving.insert(member.id);
  } else {
    core.leaving.erase(member.id);
  }
}

}  // namespace lorry::sync
