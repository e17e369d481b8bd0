// A simulated door: the real Router, with clients whose requests take their time on the engine. It
// reports as the real door does: after a table, when a name that left has gone quiet, and before
// the engine's own account.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "services/engine_proxy/door/router.h"
#include "tests/sim/sim_engine.h"

namespace lorry::sim {

class SimDoor {
 public:
  struct Hooks {
    std::function<void(const proxy::DoorReport&)> report;
    std::function<void(const std::string& asked, const door::Resolved&)> began;
  };
  SimDoor(Sim& sim, SimEngine& engine, Hooks hooks);

  void Take(proxy::DoorTable table);
  void Report();

  // What a client asks for; it lasts `lasts_ms` on the engine.
  struct Wish {
    std::vector<std::string> adapters;  // as the client spells them: one, or one a child
    uint32_t children = 1;              // of each: n, or what the engine makes of a batch
    int64_t lasts_ms = 1;
  };
  struct Answer {
    std::vector<VersionKey> served;
    std::string refused;  // the reason, or HELD while it waits at a held row
  };
  Answer Request(const Wish& wish);
  // Any name that is loaded, as an explicit version is asked for; empty while there is none.
  std::string SomeName();
  std::shared_ptr<const proxy::DoorTable> table() const { return router_.table(); }
  bool Routes(const EngineName& name) const { return router_.table()->FindRoute(name) != nullptr; }
  // Adapters that a request has waited for in vain.
  const std::set<AdapterName>& given_up() const { return given_up_; }
  void ForgetGivenUp() { given_up_.clear(); }
  // The engine's process is gone, and with it every connection to it.
  void EngineDied();
  // It takes nobody in any more; those that wait at a HELD row are let go.
  void Close() {
    is_closed_ = true;
    held_.clear();
  }
  // This process is gone, and its connections with it: the engine ends what nobody waits for.
  void Died();
  // The engine ends all that runs there.
  void AbortAll();
  // Requests by the bare name of an adapter that run there under that name.
  uint32_t RunningOnLatest(const EngineName& name) const;

 private:
  struct Live {
    door::Admission admission;
    std::vector<EngineName> names;
    BootId boot;
    uint32_t children;
    std::set<EngineName> on_latest;
  };
  struct Waiting {
    Wish wish;
    Tick until = 0;
    door::Demand demand = {};  // for an adapter that is loaded on demand
  };
  // Asked first now, or again by a request that waits.
  Answer Ask(const Wish& wish, Waiting again);
  Answer Begin(const Wish& wish, door::Admitted admitted);
  void GiveUp();  // whoever has waited for an adapter as long as it may
  void End(uint64_t id);
  void EndNow(uint64_t id);

  Sim& sim_;
  SimEngine& engine_;
  Hooks hooks_;
  door::Router router_;
  std::map<uint64_t, Live> live_;
  uint64_t last_ = 0;
  std::vector<Waiting> held_;
  std::set<AdapterName> given_up_;
  bool is_closed_ = false;
};

}  // namespace lorry::sim
