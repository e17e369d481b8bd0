#include "services/sync_orchestrator/machine/forgetting.h"

#include "services/sync_orchestrator/machine/keys.h"

namespace lorry::sync {
namespace {

void ForgetNames(Core& core, const VersionKey& key) {
  auto it = core.names.lower_bound({key, fleet::Render()});
  while (it != core.names.end() && it->first.first == key) {
    core.named.erase(it->second);
    it = core.names.erase(it);
  }
}

}  // namespace

void AdvanceForgetting(Core& core) {
  // What a store has lost may be there again.
  if (core.footing != Footing::kSettled) return;
  std::erase_if(core.deleted, [&](const VersionKey& key) {
    if (core.FindVersion(key) != nullptr) return false;
    ForgetNames(core, key);
    if (core.verdicts.erase(key) > 0) {
      core.Erase(VerdictKey(key));
      core.changed.Adapter(key.adapter);
    }
    return true;
  });
}

}  // namespace lorry::sync
