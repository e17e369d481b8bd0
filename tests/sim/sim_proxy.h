// A simulated proxy: the machine behind its driver, with its journal and disk, which survive, and
// the glue to engine, door and network. Network and leaders are behind two functions.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "services/engine_proxy/machine/machine.h"
#include "services/sync_orchestrator/machine/records.h"
#include "tests/sim/sim_binder.h"
#include "tests/sim/sim_door.h"
#include "tests/sim/sim_driver.h"
#include "tests/sim/sim_engine.h"

namespace lorry::sim {

class SimProxy {
 public:
  struct Hooks {
    std::function<void()> dial;                        // this process wants a session
    std::function<void(const fleet::Observed&)> send;  // to the session's leader
    std::function<void()> hang_up;                     // the process died with its session
    std::function<bool(const VersionKey&)> stored;     // whether the store has it
    std::function<SimDirectory(const Digest&)> image;  // what these bytes are
  };

  SimProxy(Sim& sim, MemberId member, PoolName pool, fleet::EngineLimits limits, Hooks hooks);

  void Start();
  void Kill(bool lose_journal);
  void Evict();  // its pod is another one: journal and directories are gone, as the engine is
  bool IsLocked() const {  // some row
    return alive() && std::ranges::any_of(machine().Observe().rows, [](const auto& row) {
             return row.mode == fleet::RowMode::kLocked;
           });
  }
  // SIGTERM: its door admits nobody and closes so much later, it says goodbye where somebody hears it,
  // and it ends a little later.
  void Drain(int64_t closes_after_ms = 0);
  bool alive() const { return driver_.alive(); }
  uint64_t life() const { return life_; }

  // Whether its reports of this moment say what its engine died of last.
  bool TellsOfDeath() const { return stepped_judged_; }

  // From the network; a session belongs to one life.
  void SessionUp();
  void SessionDown();
  void Receive(const fleet::Desired& desired) { Post(proxy::DesiredReceived{desired}); }

  SimDoor::Answer Request(const SimDoor::Wish& wish);
  // By a name that is loaded, as an explicit version is.
  SimDoor::Answer RequestSome(int64_t lasts_ms);
  // A request of each adapter that is loaded on demand and that its door has open; and whose
  // requests have given up waiting since.
  void AskForAll(int64_t lasts_ms);
  std::set<AdapterName> GivenUp() const;
  // A framework's call, and a request by one of its names.
  void Bind(Prng& prng, int64_t lasts_ms);
  // It begins in front of an engine that is full of what another fleet left there; a framework aborts
  // what runs and pauses it so much later, and binds a name.
  void BeginOnFullEngine(int64_t paused_after_ms);
  // Why the framework got no room under its pause; empty where it did, or may not have.
  std::string WhyNoRoom() const;
  void CheckPause();
  // And releases its memory, which it takes again after so long, or gives it other weights.
  void FrameworkReleases(int64_t lasts_ms);
  void FrameworkUpdates(const std::string& text);
  // And takes the weights first, and waits for an adapter of its own before it takes the rest.
  void FrameworkReleasesForOwn();
  // Why it waits in vain; empty where it does not, or may.
  std::string WhyNoOwn() const;
  // A framework at its door pauses the engine, or lets it go on: which, is drawn from the text.
  void FrameworkCalls(const std::string& text);
  // And every call of one was answered by now, unless its proxy died.
  void CheckCalls();
  // Somebody puts its engine to sleep without the door.
  void FallsAsleep() {
    engine_.SetAsleep(true);
    framework_.woken = false;
  }
  bool knows_asleep() const { return knows_asleep_; }
  void EngineChanged();  // the driver's poll notices what the engine is now, a little later
  void LoseSight(int64_t ms, bool ended);  // the driver does not see the engine, though it lives
  void Move(const PoolName& pool) { pool_ = pool; }  // its next session is of that pool
  // What a session begins with: what is so, or what was observed last.
  fleet::Observed Hello(bool is_stale) const {
    return is_stale && last_sent_.has_value() ? *last_sent_ : machine().Observe();
  }
  // By an operator. Where the process lives, its door answers against the operator's word until it
  // was told anew.
  void DeclaredDead() { believed_dead_ = alive(); }
  // A leader took its goodbye.
  void GoodbyeTaken() { sim_.lives.Left(member_.value); }
  void Rot();           // some directory has other bytes
  void CannotBeRead();  // some directory, until it is written anew

  // A leader's records say that it may try the version, as this journal is to tell what comes of that;
  // and do not say so any more, or the leader has heard it.
  void MayTry(const VersionKey& key, const JournalId& journal);
  void HasTried(const VersionKey& key) { may_try_.erase(key); }

  // As which the engine knows a version of which the proxy has heard that it is leased; null: it has
  // not.
  const EngineName* LeasedName(const VersionKey& key) const;

  const MemberId& member() const { return member_; }
  const PoolName& pool() const { return pool_; }
  SimEngine& engine() { return engine_; }
  const proxy::Machine& machine() const { return driver_.machine(); }
  // What it says and its journal does not, where all is written that it has decided.
  std::string WhyNotWritten() const;
  // What it says, or has its door resolve by, that is not so.
  std::string WhyNotSo() const;
  std::string Describe() const;

 private:
  void Post(proxy::Event event) { driver_.Post(std::move(event)); }
  void Later(int64_t delay, proxy::Event event);  // for this life only
  // By the driver.
  void Step(const proxy::Event& event);
  bool Write(const proxy::Ready& ready);
  void Do(const proxy::Effect& effect);
  // As the machine takes a document.
  void Obey(const proxy::DesiredReceived& event);
  void Refuse(const fleet::Desired& desired);
  // A call goes to the process that it is meant for, or to nobody.
  bool Reaches(const BootId& boot) const {
    return engine_.up() && engine_.boot() == boot && sim_.now() >= blind_until_;
  }
  void Check(const proxy::DoorTable& table);
  void CheckProven(const fleet::Observed& observed, const proxy::DoorRoute& route);
  void CheckShut(const AdapterName& adapter);
  void CheckLatest(const door::Resolved& resolved);
  void CheckFresh(const AdapterName& adapter, const VersionKey& served);
  void CheckAwake(const EngineName& name);
  void CheckSaid();
  std::string WhyTableIsNot(const fleet::Observed& said, const proxy::DoorTable& table) const;
  void CheckRefusal(const std::string& reason, Tick asked_at);
  void NotePauseWaits();
  void CheckRest(const proxy::Record& record);
  void NoteRows();
  void NoteHolds(const fleet::Desired& desired);
  void PauseNow(fleet::PauseKind kind);
  void Pause(const proxy::PauseEngine& effect, Tick until);
  void Confirm(const proxy::PauseEngine& effect, Tick until);
  void CheckUnload(const EngineName& name);
  uint32_t UnknownOf(const EngineName& name) const;
  void CheckDelete(const EngineName& name, const std::string& path);
  void UnloadOneThatIsRouted();  // a planted bug
  // Whether it holds for every document that an effect of this turn may have come of.
  bool AlwaysSaid(const std::function<bool(const fleet::Desired&)>& says) const;
  bool OneIncarnation() const;
  void TurnIsOver(const std::vector<proxy::Event>& batch);
  void NoteTrial(const proxy::NameRecord& record);
  void NoteAnswers(const proxy::Event& event);
  void AskNobody(proxy::OpId op, const BootId& boot, const std::string& path);
  void NoteUnsent(const proxy::Event& event);
  void EngineDied();
  void NoteJudged(const proxy::Event& event);
  std::string PathOf(const EngineName& name) const {
    return "/" + machine().journal().value + "/" + name.value;
  }

  void Do(const proxy::Fetch& effect);
  void Do(const proxy::CancelFetch& effect);
  void Do(const proxy::HashDirectory& effect);
  void Do(const proxy::CheckShapes& effect);
  void Do(const proxy::DeleteDirectory& effect);
  void Do(const proxy::List& effect);
  void Do(const proxy::Load& effect);
  void Do(const proxy::Probe& effect);
  void Do(const proxy::Unload& effect);
  void Do(const proxy::AskOccupancy& effect);
  void Do(const proxy::PauseEngine& effect);
  void Do(const proxy::ResumeEngine& effect);
  void Do(const proxy::PassCall& effect);
  void FrameworkAsks(proxy::FrameworkCall call);
  void FrameworkWakes();
  bool ChangesBetweenParts();
  bool BindsBetweenParts();
  bool IsBetweenParts();
  void FrameworkWakesIn(int64_t ms);
  void NoteProbe(const proxy::ProbeDone& done);
  void CheckReleased(const std::string& what, const proxy::MemoryTags& needed);
  void CheckWoken();
  void NoteSleep(const proxy::Event& event);
  proxy::EngineSeen Look() const;
  void Told(proxy::EngineSeen seen);
  void LookNow();
  void LookOn();
  void BrokeOff(const BootId& boot);
  void Do(const proxy::SetDoorTable& effect);
  void Do(const proxy::SendObserved& effect);
  void Do(const proxy::AnswerCall& effect);
  void CheckMayGoOn(const BootId& boot);
  void MayHold();
  void FrameworkLeaves(uint64_t ticket);
  void Do(const proxy::ReadBinding& effect);
  void Do(const proxy::AnswerBinding& effect);
  // Into a directory of this proxy's.
  void Put(const std::string& path, SimDirectory directory);

  Sim& sim_;
  MemberId member_;
  PoolName pool_;
  Hooks hooks_;
  SimDisk disk_;
  SimEngine engine_;
  SimBinder binder_;
  proxy::Records journal_, read_;
  uint64_t journals_ = 0;
  JournalId journal_id_;
  uint64_t life_ = 0;
  uint64_t drains_in_ = 0;  // the last life that was asked to end
  SimDriver<proxy::Machine, proxy::Event> driver_;
  // Doors of dead lives stay: their requests are still on the engine.
  std::vector<std::unique_ptr<SimDoor>> doors_;
  std::set<proxy::OpId> cancelled_;
  BootId seen_boot_;
  uint64_t looks_on_in_ = 0;  // the life that looks every second
  Tick looked_at_ = 0;        // the last look is told then
  Tick load_shown_at_ = 0;    // by the engine, the last time
  Tick waits_since_ = 0;      // it asks for that load again and again
  Tick stepped_at_ = 0;       // the machine, the last time
  proxy::OpId passed_ = 0;    // the last PassCall whose answer this life was told
  Tick blind_until_ = 0;
  std::optional<fleet::Observed> last_sent_;  // of this life
  uint64_t turns_ = 0;
  Tick began_at_ = 0;  // this life
  // Unloads that were asked for, or may have been by an earlier process: until the name is loaded
  // anew one that failed is asked for again.
  std::set<EngineName> unloads_;
  std::map<proxy::OpId, EngineName> asked_of_;  // loads, probes and unloads of this life
  // Of these, what no engine has heard of: for which boot, and whether the machine knows.
  struct Unsent {
    VersionKey key;
    BootId boot;
    bool is_known = false;
  };
  std::map<proxy::OpId, Unsent> unsent_;
  std::set<proxy::OpId> unanswered_;  // loads of this life
  BootId dead_;                       // the engine's last that ended
  // This life has seen that; what the machine and its journal know of why, if it is anybody's.
  bool sees_end_ = false, stepped_judged_ = true, judged_ = true;
  std::set<VersionKey> may_try_;  // with its journal goes what came of that
  // Rows that were reported LOCKED, until a document opens or closes them; not a restart.
  std::map<AdapterName, Epoch> locked_;
  struct SimRow {
    fleet::RowMode mode = fleet::RowMode::kClosed;  // as the door was last told
    bool is_shut = true;                            // by the machine, and since when, the last time
    Tick shut_at = 0;
    int64_t hold_for_ms = 0;  // the shortest that it was told while it was shut
  };
  std::map<AdapterName, SimRow> door_rows_;
  // What frameworks asked for through it, one call at a time.
  struct SimFramework {
    uint64_t last = 0;  // ticket
    struct Open {
      bool is_pause = false;
      Tick at = 0;
      bool is_memory = false, is_wake = false;
      proxy::MemoryTags tags = {};
    };
    std::map<uint64_t, Open> open;                    // somebody waits for the answer
    std::map<uint64_t, proxy::FrameworkCall> memory;  // of this life
    BootId asleep;                                    // that is to be woken
    proxy::MemoryTags back;                           // of its memory, as its caller was told
    bool changed = false, bound = false;  // between the two parts of it, if it does that at all
    Tick bound_at = 0;
    BootId bound_on;
    bool must_bind = false;           // it does
    std::set<proxy::OpId> wakes_all;  // of what the proxy knows to be released, by that call
    bool woken = false;               // it was told so, and nobody has put it to sleep since
    int wakes = 0;                    // that are to come
    std::string loses;                // what it loses meanwhile
    BootId boot;                      // that was paused last
    Tick may_hold_until = 0;          // at the latest, whatever became of the calls
    Tick must_hold_until = 0;         // as its caller was told, unless it is let go on
    bool sleeps = false;              // the engine, as the machine knows
    bool sleeps_held = false;         // and it may have been paused when that began
  };
  SimFramework framework_;
  std::set<EngineName> failed_probe_;  // their last one
  std::set<EngineName> differed_;      // from the base model, by their last one
  // Of these, what was served as such, and is remembered from then on.
  std::set<EngineName> told_apart_;
  bool believed_dead_ = false;
  // It said goodbye, and no session of a later life has told it anything.
  bool has_left_ = false;
  // The document by which the door resolves: the last of the turns that are over. Then those that
  // the turn under way has stepped.
  using Document = std::shared_ptr<const fleet::Desired>;
  Document known_;
  std::vector<Document> stepped_;
  // Before this turn, and of what it stepped: the last, and whether anything said otherwise.
  bool knows_asleep_ = false, stepped_asleep_ = false, was_awake_ = false;
};

}  // namespace lorry::sim
