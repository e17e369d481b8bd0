#include "services/sync_orchestrator/machine/desired.h"

#include <utility>

#include "services/sync_orchestrator/machine/roster.h"
#include "services/sync_orchestrator/machine/wanted.h"

namespace lorry::sync {
void AdvanceDesired(Core& core) {
  if (!core.store_known || !core.meta.settled) return;
  for (auto& [id, member] : core.members) {
    if (!member.session.has_value() || !member.served) continue;
    const bool answered = member.observed->term == core.meta.term &&
                          member.observed->revision == member.desired.revision;
    const bool overdue = !answered && core.now - member.sent_at >= core.config.resend_ms;
    if (member.built_at == core.changes && !overdue) continue;
    fleet::Desired desired = BuildDesired(core, member);
    member.built_at = core.changes;
    desired.revision = member.desired.revision;
    if (desired == member.desired && !overdue) continue;
    // An overdue one is sent again as it was: under a new number an answer to it, however slow the
    // member is, would never count.
    if (desired != member.desired) {
      desired.revision = Revision(member.desired.revision.value + 1);
      member.desired = std::move(desired);
      core.held_at = 0;
    }
    member.sent_at = core.now;
    core.effects.push_back(SetDesired{*member.session, id, member.desired});
  }
}

bool IsCurrent(const Member& member) {
  if (!member.session.has_value() || member.desired.journal.empty()) return false;
  const fleet::Observed& observed = *member.observed;
  if (observed.term != member.desired.term || observed.revision != member.desired.revision)
    return false;
  for (const fleet::DesiredRow& row : member.desired.rows) {
    const fleet::ObservedRow* has = RowOf(member, row.adapter);
    if (has == nullptr || has->mode != row.mode) return false;
    if (row.mode == fleet::RowMode::kOpen && (has->epoch != row.epoch || has->target != row.target))
      return false;
  }
  for (const fleet::WantedVersion& wanted : member.desired.wanted) {
    if (wanted.must && wanted.load && !IsLoaded(member, wanted.name)) return false;
  }
  return true;
}

}  // namespace lorry::sync
