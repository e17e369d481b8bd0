// What trainers, clients and operators do in a simulated second.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tests/sim/draw.h"
#include "tests/sim/world.h"

namespace lorry::sim {

class Work {
 public:
  Work(World& world, const Without& without)
      : world_(world), sim_(world.sim()), without_(without) {}

  void Add(const AdapterName& adapter) { adapters_.push_back(adapter); }
  const std::vector<AdapterName>& adapters() const { return adapters_; }
  void Second();
  // A client that has a lease calls the engine itself.
  void AskDirectly(SimProxy& proxy);
  // An operator pins a pool to some version, or lifts that.
  void Override(const AdapterName& adapter);
  // A promise that outlasts the run: whatever `latest` is now.
  void LeaseForLong(const AdapterName& adapter);

 private:
  uint64_t Below(uint64_t bound) { return sim_.prng.Below(bound); }
  // Once in so many seconds, unless the run goes without.
  bool Now(const char* name, uint64_t one_of) { return Below(one_of) == 0 && without_.Has(name); }
  void On(const AdapterName& adapter);
  void Publish(const AdapterName& adapter);
  void Resume(const AdapterName& adapter);
  void Lease(const AdapterName& adapter, const std::string& holder, int64_t ttl_ms);
  void SelectOtherwise(const std::string& text, fleet::Selector& selector);
  void OverrideAgain(const AdapterName& adapter);
  void Mark();
  void Request(SimProxy& proxy);

  World& world_;
  Sim& sim_;
  const Without& without_;
  std::vector<AdapterName> adapters_;
  std::map<AdapterName, std::vector<sync::OverrideSet>> asked_;  // pins with a name of their own
};

}  // namespace lorry::sim
