#include "services/sync_orchestrator/machine/plan.h"

#include "services/sync_orchestrator/machine/adoption.h"
#include "services/sync_orchestrator/machine/catalogue.h"
#include "services/sync_orchestrator/machine/desired.h"
#include "services/sync_orchestrator/machine/forgetting.h"
#include "services/sync_orchestrator/machine/holds.h"
#include "services/sync_orchestrator/machine/leases.h"
#include "services/sync_orchestrator/machine/roster.h"
#include "services/sync_orchestrator/machine/sync.h"
#include "services/sync_orchestrator/machine/trials.h"
#include "services/sync_orchestrator/machine/watches.h"

namespace lorry::sync {

void Plan(Core& core) {
  core.ForgetMade();
  AdvanceAdoption(core);
  AdvanceRoster(core);
  AdvanceLeases(core);
  // Each planner may give the others something to do, and in the end none has anything left. A
  // decision lets another version begin, and pools that follow it may begin and decide at once:
  // each takes a round.
  constexpr int kRounds = 16;
  for (int round = 0; round < kRounds; ++round) {
    AdvanceCatalogue(core);
    AdvanceSyncs(core);
    AdvanceForgetting(core);
    AdvanceTrials(core);
    if (!core.changed.MovesSyncs()) break;
  }
  AdvanceDesired(core);
  AdvanceHolds(core);
  AdvanceWatches(core);
}

}  // namespace lorry::sync
