// The pause's table (docs/machines.md). Private to the folder.
#pragma once

#include <cstdint>
#include <span>

namespace lorry::proxy {

// In the order of the alternatives of PausePhase (state.h).
enum class PauseState : uint8_t { kNone, kPausing, kPaused, kResuming };

enum class PauseEvent : uint8_t {
  kWanted,
  kHolds,      // the engine said so
  kFails,      // the engine did not pause, or may have
  kEnds,       // nobody wants it any more, or its deadline passed
  kResumeDue,  // the last resume was not confirmed
  kResumed,
  kBootEnded,   // another life of the engine is not paused
  kAskedAgain,  // by a framework that holds it
  kLetGo,       // a framework lets an engine go on that Lorry has not paused
};

enum class PauseAsk : uint8_t { kNothing, kPause, kResume };
enum class PauseWrite : uint8_t { kNothing, kPaused, kNotPaused };

struct PauseTransition {
  PauseState from;
  PauseEvent event;
  PauseState to;
  PauseAsk ask = PauseAsk::kNothing;
  PauseWrite write = PauseWrite::kNothing;
};

std::span<const PauseTransition> PauseTable();

}  // namespace lorry::proxy
