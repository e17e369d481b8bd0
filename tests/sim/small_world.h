// Two members and two versions, of which whoever explores decides what happens next: the machines
// are the real ones, everything around them is as plain as can be. What is on its way waits in
// channels that keep their order; time passes only while nothing waits, or what waits is late.
#pragma once

#include <array>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "services/engine_proxy/machine/machine.h"
#include "services/sync_orchestrator/machine/machine.h"
#include "tests/sim/oracle.h"

namespace lorry::sim {

class SmallWorld {
 public:
  // BARRIER: every door serves the first version, which was decided without a barrier, and the second
  // is stored. Otherwise whatever happens begins with the first process.
  explicit SmallWorld(fleet::SyncMode mode);

  // What may happen now; the first is what would, were nobody to choose. None: it is over, or it
  // went wrong.
  size_t Choices();
  void Choose(size_t choice);
  // Of everything that can still make a difference, as far as the machines show it.
  uint64_t Hash() const;
  const Oracle& oracle() const { return oracle_; }
  uint64_t steps() const { return steps_; }

 private:
  static constexpr size_t kMembers = 2;
  static constexpr size_t kFromStore = 0, kToLeader = 1, kToProxy = 3;
  static constexpr size_t kAnswers = 5, kDoors = 7, kChannels = 9;
  struct Pending {
    uint64_t number;
    size_t hash;
    std::function<void()> deliver;
  };
  struct Member {
    std::optional<proxy::Machine> machine;
    proxy::Records journal;
    std::set<std::string> disk;
    std::map<EngineName, std::string> registry;
    uint64_t boot = 1;
    sync::SessionId session = 0;
    std::optional<Tick> wake;
  };

  void Send(size_t channel, size_t hash, std::function<void()> deliver);
  void Answer(size_t member, proxy::Event event);
  void Tell(const sync::Event& event, size_t channel);
  void Publish(uint64_t number);
  // What is on its way there arrives later than a stage or a hold lasts.
  void Delay(size_t channel);
  bool IsLate(size_t channel) const { return now_ < late_until_[channel]; }
  bool Waits(size_t channel) const { return !channels_[channel].empty() && !IsLate(channel); }
  void StartLeader();
  void StartProxy(size_t member);
  void Attach(size_t member);
  void SeeEngine(size_t member);
  void Step(const sync::Event& event);
  void Step(size_t member, const proxy::Event& event);
  void Take();
  void Take(size_t member);
  void Do(size_t member, const proxy::Effect& effect);
  void Check(size_t member, const proxy::DoorTable& table);
  void CheckBarrier(size_t member);
  void CrashLeader();
  void CrashProxy(size_t member);
  void CrashEngine(size_t member);
  bool IsIdle() const;
  bool IsSettled() const;
  void PassTime();
  std::vector<size_t> Heads() const;

  fleet::AdapterPolicy policy_;
  std::vector<sync::VersionInfo> published_;
  Tick now_ = 1'000;
  Tick over_;  // whatever happened, the newest version is served by then
  std::function<Tick()> clock_ = [this] { return now_; };
  Oracle oracle_{clock_};
  uint64_t numbers_ = 0;
  uint64_t steps_ = 0;
  sync::SessionId sessions_ = 0;
  std::array<std::deque<Pending>, kChannels> channels_;
  std::array<Tick, kChannels> late_until_ = {};
  std::array<Member, kMembers> members_;
  std::optional<sync::Machine> leader_;
  std::optional<Tick> leader_wake_;
  sync::Records records_;
  std::vector<std::function<void()>> crashes_;  // and delays; each at most once
  std::vector<bool> crashed_;
};

}  // namespace lorry::sim
