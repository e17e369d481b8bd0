// The row's table (docs/machines.md): which event leads from which state where, and what is
// written down. Its effect is always the same one, a new table for the door. Private to the folder.
#pragma once

#include <cstdint>
#include <span>

namespace lorry::proxy {

// In the order of the alternatives of RowPhase (state.h).
enum class RowState : uint8_t { kClosed, kOpen, kHeld, kLocked };

enum class RowEvent : uint8_t {
  kServes,        // what it stands on is LOADED here
  kStopsServing,  // and is not any more
  kDecided,       // a decision, whose version is LOADED here
  kGoesOn,        // a decision, whose version is not, and until then the row goes on as it is
  kCannotServe,   // likewise, and the row may not go on with what it has
  kHold,
  kHoldEnds,  // by its own deadline
  kLock,
  kClose,
  kLeaves,  // the door is closed for good, and the member says goodbye
};

enum class RowWrite : uint8_t { kNothing, kDecision, kUnlocked, kShut, kLock, kClosed, kWaits };

struct RowTransition {
  RowState from;
  RowEvent event;
  RowState to;
  RowWrite write = RowWrite::kNothing;
};

std::span<const RowTransition> RowTable();

}  // namespace lorry::proxy
