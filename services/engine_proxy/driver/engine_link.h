// The engine as the machine sees it: looks at it every second, carries out what the machine asks,
// answers by events.
//
// One io_context on one thread; everything of the engine happens there. Public methods may be
// called from any thread. Owned by main; the sink outlives it.
#pragma once

#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>

#include "services/engine_proxy/driver/base_model_finder.h"
#include "services/engine_proxy/driver/event_sink.h"
#include "services/engine_proxy/engines/engine.h"
#include "services/engine_proxy/engines/engines.h"
#include "services/engine_proxy/machine/effects.h"

namespace lorry::proxy {

class EngineLink {
 public:
  struct Options {
    engines::EngineOptions engine;
    // Which base model it serves; asked at each boot, and again while nobody knows.
    std::function<FoundBaseModel(const engines::EngineFacts&)> find_base_model;
    // Nodes on which a version's files are before it is loaded; 0: on all, by a file system that
    // they share.
    uint64_t nodes = 1;
    // Between two looks: a restarted engine is noticed within a second, and a look costs it one
    // HTTP request.
    int64_t look_every_ms = 1'000;
    int64_t look_deadline_ms = 5'000;
    // So many looks in a row must fail before an engine that still accepts connections counts as
    // lost: SGLang answers nothing while it loads an adapter.
    int lost_after = 3;
    int64_t call_deadline_ms = 10'000;   // List, GetOccupancy, ends of pauses
    int64_t load_deadline_ms = 60'000;   // reads the files; a large adapter on a cold disk
    int64_t probe_deadline_ms = 30'000;  // one token on an engine that has nothing else to do
    // One behind everything that it is doing: a full engine takes new requests as old ones end.
    int64_t busy_probe_deadline_ms = 300'000;
  };
  struct Others {
    bool in_flight = false;  // requests are at the engine
    uint64_t heard = 0;      // grows with every piece of a reply to one
  };
  // All on the link's thread.
  struct Listeners {
    // Each new set of facts, once for each life of the engine: the door needs them.
    std::function<void(const engines::EngineFacts&)> on_facts;
    // How long a load took, however it went, and for how long the engine was paused.
    std::function<void(double seconds)> on_loaded;
    std::function<void(double seconds)> on_paused;
    std::function<void(Outcome outcome)> on_unloaded;
    // The paths that the engine lists, each time it was asked.
    std::function<void(const std::set<std::string>& paths)> on_listed;
    // Posts a DoorReport to the sink: what the engine says of its load is compared with the door's
    // counts, and an older count would contradict it for as long as requests keep coming.
    std::function<void()> report_counts;
    // What the engine does for others, as the door sees it.
    std::function<Others()> others;
  };

  EngineLink(Options options, EventSink sink, Listeners listeners);
  ~EngineLink();

  void Start();
  void Stop();  // calls in flight are dropped

  // At the last look nobody listened at its address.
  bool ended() const { return ended_; }

  void Run(const List& list);
  void Run(const Load& load);
  void Run(const Probe& probe);
  void Run(const Unload& unload);
  void Run(const AskOccupancy& ask);
  void Run(const PauseEngine& pause);
  void Run(const ResumeEngine& resume);
  // `call` as it came, none where its client has left; `on_reply` gets what the engine answers before
  // the machine hears of it.
  void Run(const PassCall& pass, std::optional<engines::RawCall> call,
           std::function<void(engines::RawReply)> on_reply);

 private:
  void Look();
  void Inspect();
  void LookAgain();
  void NotePauseEnded();
  // That boot has answered a call, which is a sign of life though looks have failed meanwhile.
  void NoteAnswer(const BootId& boot);
  // `passed` as it was when the look began.
  void OnFacts(const engines::EngineFacts& facts, OpId passed);
  void OnLook(const absl::StatusOr<engines::EngineFacts>& facts, OpId passed);
  // nullopt: the engine does not say.
  void GetOccupancy(const BootId& boot,
                    std::function<void(std::optional<engines::Occupancy>)> answer);
  // `before`: the engine's load before it was asked.
  void Ask(const Probe& probe, std::optional<engines::Occupancy> before);
  // Runs `call` on the link's thread with the engine, or `otherwise` when there is none, or another
  // boot than asked.
  void With(const BootId& boot, std::function<void(engines::Engine&)> call,
            std::function<void()> otherwise);

  const Options options_;
  const EventSink sink_;
  const Listeners listeners_;
  boost::asio::io_context io_;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
  boost::asio::steady_timer timer_;
  // The link's thread alone.
  std::unique_ptr<engines::Engine> engine_;
  BootId boot_;                    // empty while it is lost
  BootId last_boot_;               // the last one seen, lost or not
  FoundBaseModel base_model_;      // of that boot
  std::optional<Tick> paused_at_;  // asked for; until a resume is answered
  OpId passed_ = 0;                // the last PassCall whose answer was told
  int failures_ = 0;
  std::atomic<bool> ended_{false};
  std::thread thread_;
};

}  // namespace lorry::proxy
