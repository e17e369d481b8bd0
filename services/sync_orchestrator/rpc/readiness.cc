#include "services/sync_orchestrator/rpc/readiness.h"

namespace lorry::sync {

absl::Status IsReady(Orchestrator& orchestrator, const StoreLink& store, Tick deadline) {
  if (!store.connected()) return absl::UnavailableError("the adapter-store does not answer");
  if (orchestrator.TakesTurn(deadline).ok()) return absl::OkStatus();
  return absl::UnavailableError(
      "it takes no turn: it is busy, or cannot write its records, which its log says");
}

}  // namespace lorry::sync
