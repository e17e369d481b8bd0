// A simulated framework that knows nothing of Lorry: it writes directories, binds and unbinds names at
// one door, and knows which bytes each name may stand for.
#pragma once

#include <map>
#include <set>
#include <string>

#include "lib/base/prng.h"
#include "services/engine_proxy/machine/machine.h"
#include "tests/sim/sim.h"
#include "tests/sim/sim_disk.h"

namespace lorry::sim {

class SimBinder {
 public:
  SimBinder(Sim& sim, std::string member) : sim_(sim), member_(std::move(member)) {}

  // A call at random; a directory is written anew before some.
  proxy::Event Draw(Prng& prng);
  // A call for a name that only such calls are for, and new bytes in its directory.
  proxy::Event BindNew(const std::string& name);
  // A call to bind it has no answer.
  bool Awaits(const std::string& name) const;
  const std::string& last_refusal() const { return last_refusal_; }
  static std::string NameOf(uint64_t number) { return "l" + std::to_string(number); }
  static constexpr uint64_t kNames = 4;

  // What a directory has now.
  SimDirectory Has(const std::string& path) const;
  // The process that was asked is gone, and perhaps its journal.
  void ProxyDied(bool lost_journal);

  // By the door, for a call; `by` is the table that it resolves by now.
  void Answered(const proxy::AnswerBinding& answer, const proxy::DoorTable& by);
  // A request by that name begins.
  void Began(const std::string& name, const Digest& digest);
  // What was resolved by is what was written down, and no call is left alone.
  void TurnIsOver(const proxy::Machine& machine, const proxy::Records& journal);

 private:
  struct Call {
    std::string name;
    std::string path;        // empty: it unbinds
    std::set<Digest> maybe;  // what its directory had since it was made
    Tick made_at = 0;
    bool is_overtaken = false;  // a later one for the name has been served: it may not be any more
    bool is_reserved = false;   // nobody may bind that name
  };
  std::set<Digest> MayServe(const std::string& name) const;

  Sim& sim_;
  const std::string member_;
  uint64_t last_ticket_ = 0;
  uint64_t last_bytes_ = 0;
  std::string last_refusal_;
  std::map<std::string, uint64_t> files_;  // which bytes
  std::map<uint64_t, Call> calls_;
  std::map<std::string, std::set<Digest>> stands_for_;  // by calls that are over
  std::set<std::string> bound_;                         // of these, what is bound for sure
};

}  // namespace lorry::sim
