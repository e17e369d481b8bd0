// A simulated engine with its registry of adapters and the bugs of the real ones as faults.
#pragma once

#include <map>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "services/engine_proxy/machine/events.h"
#include "tests/sim/sim.h"
#include "tests/sim/sim_disk.h"

namespace lorry::sim {

// What of it is released and taken back by itself.
inline const proxy::MemoryTags kWeights = {"weights"};
inline const proxy::MemoryTags kMemoryTags = {"kv_cache", "weights"};

class SimEngine {
 public:
  SimEngine(Sim& sim, std::string id, fleet::EngineLimits limits, SimDisk& disk);

  void Start();
  void Kill();  // its process is gone; Start begins another boot
  void OnDeath(std::function<void()> tell) { on_death_ = std::move(tell); }
  bool up() const { return up_; }
  // What it serves on this boot.
  const peft::BaseModel& base_model() const { return base_; }
  // Whether requests of the name are answered by the base model, or, where the trainer said what it
  // should answer, otherwise; and whether there is enough to notice it.
  bool AnswersWrongly(const EngineName& name) const;
  bool CanBeNoticed(const EngineName& name) const;
  BootId boot() const { return boot_; }
  const fleet::EngineLimits& limits() const { return limits_; }
  // The wrong flag of this boot; empty when it has none.
  const std::optional<std::string>& problem() const { return problem_; }
  void Mend() { problem_.reset(); }
  // It dies of whatever it loads, by itself.
  void MakeFragile(bool is_fragile) { is_fragile_ = is_fragile; }
  bool IsLoading() const { return up_ && !loading_.empty(); }
  Tick up_since() const { return up_since_; }
  // Whether this engine takes a version with these contents, alive.
  bool Takes(const SimDirectory& contents) const {
    return contents.harm != Harm::kKillsAtLoad && contents.harm != Harm::kKillsAtUse &&
           !Refuses(contents) && contents.hidden_size == base_.hidden_size;
  }
  // A client that was leased the name calls it without the door, for so long.
  void AskDirectly(const EngineName& name, int64_t lasts_ms);

  // Each answers through `done`, after a while, or with kUnknown when the answer is lost or the
  // engine is gone.
  using Done = std::function<void(proxy::Outcome, std::string reason)>;
  void Load(const EngineName& name, const std::string& path, Done done);
  // Its proxy is about to ask for a load, or a probe.
  void MayBeAsked(const EngineName& name, const VersionKey& key) {
    if (up_) unheard_[name] = key;
  }
  // Its proxy takes it for dead, which it may be: what it was trying is blamed.
  void SeemsDead();
  // Its proxy is given no answer to a load in time.
  void Hung(const EngineName& name) {
    if (const auto its = unheard_.find(name); its != unheard_.end())
      sim_.lives.HungTrying(its->second, boot_);
  }
  // Its proxy has heard, and written down, what the engine answered for the name last.
  void Heard(const EngineName& name) { unheard_.erase(name); }
  using Probed = std::function<void(proxy::Outcome, std::string reason, fleet::ProbeAnswer)>;
  void Probe(const EngineName& name, fleet::ProbeKind kind, Probed done);
  // So many requests of it, which came without the door, nobody can know of.
  void Unload(const EngineName& name, int64_t deadline_ms, uint32_t unknown, Done done);
  std::map<EngineName, std::string> List();
  // Its proxy goes by this list from now on.
  void HeardList(const std::map<EngineName, std::string>& names) {
    for (const auto& [name, path] : names) {
      if (loaded_.contains(name)) known_.insert(name);
    }
  }
  // An unload waits for requests that its own counter will never see end: only a restart helps.
  bool RegistryLocked() const { return locked_by_.has_value(); }
  bool Lists(const EngineName& name) const { return loaded_.contains(name); }
  // Whether it was asked to load the name from there, and still has it.
  bool HasFrom(const EngineName& name, const std::string& path) const;
  // Whether it has these bytes loaded, or had them since then.
  bool Had(const Digest& digest, Tick since) const;
  bool ListsPath(const std::string& path) const;
  // Whether it does so under a name of which the proxy can know.
  bool ListsPathAsKnown(const std::string& path) const;
  // Whether a load that was asked for is still to read it.
  bool WillRead(const std::string& path) const { return to_read_.contains(path); }

  // A request of so many children that was resolved to `name` of `digest` for `boot` begins; the
  // empty name is the base model. False when the engine refuses it. The oracle looks at what it
  // would answer.
  bool Begin(const EngineName& name, const Digest& digest, const BootId& boot, uint32_t children);
  void End(const EngineName& name, const BootId& boot, uint32_t children);
  uint32_t running(const EngineName& name) const;
  // What it says of itself: all of its requests, and on vLLM of which adapters they are. On some
  // boots others call it too, without an end, for its base model.
  uint64_t running() const;
  std::optional<std::set<EngineName>> running_names() const;
  // It has told these; and requests without the door that began since.
  void HasShownLoad() {
    ++shown_;
    unseen_.clear();
  }
  uint32_t unseen(const EngineName& name) const;
  uint32_t direct(const EngineName& name) const {
    const auto its = direct_.find(name);
    return its != direct_.end() ? its->second : 0;
  }

  // Memory released, until it wakes or dies.
  void SetAsleep(bool asleep);
  bool asleep() const { return asleep_; }
  // By a framework, of which SGLang tells nobody. Requests, loads and probes would be its end.
  void Release(const proxy::MemoryTags& tags) {
    if (up_) released_.insert(tags.begin(), tags.end());
  }
  void TakeBack(const proxy::MemoryTags& tags);
  const proxy::MemoryTags& released() const { return released_; }
  // Also while it sleeps: they may be what was taken back first.
  bool has_weights() const { return released_.empty() ? !asleep_ : !released_.contains("weights"); }
  std::optional<bool> SaysAsleep() const {
    if (!released_.empty() && !asleep_ && !KnowsOneSleep()) return std::nullopt;
    return asleep_ || !released_.empty();
  }
  // Its memory is back, or its weights are others: what it had loaded is gone, or is applied no more
  // until it is loaded anew. Which, is drawn from the text.
  void Lose(const std::string& text);
  // Of these that came through the door, and under an adapter's name.
  uint32_t RunningForAdapters() const;
  // Asked by the proxy. A paused engine answers nothing, but what it waits for.
  void Pause(fleet::PauseKind kind);
  void Resume();
  std::optional<Tick> paused_since() const { return paused_since_; }
  bool is_frozen() const { return is_frozen_; }
  bool IsIdle() const { return running_.empty(); }

  // The proxy lost its journal: it knows nothing of what it asked for. Whoever finds the engine
  // paused lets it go on.
  void Forgotten();

  // Another fleet has left names of its own there, as many as there were free slots.
  void FillUp();
  // What it says of a call that it failed, for people: sometimes a traceback.
  std::string Words(uint64_t call) const;
  void Vanish();  // one loaded name is dropped, as by the engine's own eviction

 private:
  // vLLM knows of one sleep, whoever put it there; SGLang does not know of what is released.
  bool KnowsOneSleep() const { return limits_.kind != fleet::EngineKind::kSglang; }
  enum class Applied { kAsTrained, kNotAtAll, kOtherwise };  // as with its alpha doubled
  struct Loaded {
    std::string path;
    SimDirectory content;
    bool asked = true;  // not by the engine itself
    Applied applied = Applied::kAsTrained;
    bool is_lost =
        false;  // of that in a sleep: it is to be loaded anew, whether that can be told or not
  };
  // The same whenever the name is loaded on this boot.
  Applied WillApply(const EngineName& name) const;
  fleet::ProbeAnswer AnswerOf(const EngineName& name, fleet::ProbeKind kind) const;
  void DieOf(const SimDirectory& directory);
  bool Refuses(const SimDirectory& directory) const;
  // Whether the connection breaks of the call for the name that is made, or answered, now.
  bool BreaksOff(const EngineName& name) const {
    return IsOneIn(absl::StrCat("breaks off ", boot_.value, name.value, sim_.now()),
                   sim_.faults.breaks_off);
  }
  void CheckFits(const EngineName& name, const SimDirectory& directory);
  void CheckSlots(const EngineName& name);
  void MakeRoom(const EngineName& name);
  void ReloadByItself(const EngineName& name, const std::string& path);
  void FinishLoad(const EngineName& name, const std::string& path, const Done& done);
  void FinishUnload(const EngineName& name, const Done& done);
  Done WithDeadline(Done done);
  // How long from now a registry call that takes so long will be done.
  int64_t Serialised(int64_t takes);
  bool CountedIdle(const EngineName& name) const;

  Sim& sim_;
  std::string id_;
  fleet::EngineLimits limits_;
  SimDisk& disk_;
  std::function<void()> on_death_;
  bool up_ = false;
  uint64_t boots_ = 0;
  Tick up_since_ = 0;
  std::optional<std::string> problem_;
  uint32_t slots_ = 0;  // as the fleet was drawn
  peft::BaseModel base_{.architecture = "sim", .hidden_size = 1};
  BootId boot_;
  std::map<EngineName, Loaded> loaded_;
  std::multiset<std::string> to_read_;  // by loads under way
  std::multiset<EngineName> loading_;
  std::map<EngineName, VersionKey> trying_;  // asked to load, and not answered by yet
  // The same, as far as its proxy knows: an answer may have come to a process that died.
  std::map<EngineName, VersionKey> unheard_;
  std::map<Digest, Tick> had_;    // when they were there last
  std::set<EngineName> excused_;  // gone from the registry by a fault, not by an unload
  // What the proxy can know to hold a slot: what it was told, and what it asked for since.
  std::set<EngineName> known_;
  std::map<EngineName, uint32_t> running_;
  std::map<EngineName, uint32_t> direct_;  // of these, without the door
  std::map<EngineName, uint32_t> unseen_;  // and of those, since it told its load
  uint64_t shown_ = 0;                     // times that it did
  std::map<EngineName, uint32_t> leaked_;  // ends that its own counter missed
  bool asleep_ = false;
  proxy::MemoryTags released_;
  bool is_fragile_ = false;
  std::optional<Tick> paused_since_;
  bool has_aborted_ =
      false;  // since it was paused: none of its requests uses an adapter until it goes on
  bool is_frozen_ = false;
  Tick busy_until_ = 0;                  // registry calls are taken one after another
  std::optional<EngineName> locked_by_;  // SGLang: an unload that waits holds the registry's lock
};

}  // namespace lorry::sim
