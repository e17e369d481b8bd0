// What operators do with an adapter's pools: they have one follow something else, take one out of the
// policy and put it back, roll back what others follow, and keep many adapters elsewhere.
#pragma once

#include <map>
#include <vector>

#include "tests/sim/draw.h"
#include "tests/sim/world.h"

namespace lorry::sim {

// Without the pool; what followed it takes what is published.
void TakeOut(fleet::AdapterPolicy& policy, const PoolName& pool);

class Pools {
 public:
  Pools(World& world, const Mishaps& mishaps, uint64_t seed);

  // Adapters that have long been served, in a pool without engines here: their records are large.
  // Before any leader starts.
  void DrawPast();
  void Second(const AdapterName& adapter);
  void PublishAtOnce();  // a version of each of these adapters
  // One that was set while its pool was in the policy cannot be lifted while it is not.
  void LiftPins();
  // Everything is in its policy again, and the pool takes what is published.
  void Settle(const AdapterName& adapter, const PoolName& pool);
  // Something is published, and the pool lets go of it for a while. It is not lost to it.
  void LetGoOnce(const PoolName& pool);

 private:
  using Sources = std::map<PoolName, fleet::PoolSource>;
  const fleet::AdapterPolicy& PolicyOf(const AdapterName& adapter) const {
    return world_.store().adapters().at(adapter).policy;
  }
  void Set(const AdapterName& adapter, const Sources& sources);
  // The adapter is not in the pool, or has it take its versions from elsewhere.
  void LetGo(const AdapterName& adapter, const PoolName& pool);
  void TakeUp(const AdapterName& adapter);  // as it was before
  void ChangeSource(const AdapterName& adapter);
  void TakeOutForAWhile(const AdapterName& adapter);
  void RollBack(const AdapterName& adapter);
  void Override(const AdapterName& adapter, const PoolName& pool,
                const std::optional<VersionKey>& version);
  PoolName Some(const Sources& sources);
  fleet::PoolSource DrawSource(const Sources& sources, const PoolName& pool);

  World& world_;
  const Mishaps& mishaps_;
  Prng prng_;                             // of its own, so that other seeds stay what they are
  std::map<AdapterName, Sources> whole_;  // of those that are without something
  std::vector<AdapterName> many_;
};

}  // namespace lorry::sim
