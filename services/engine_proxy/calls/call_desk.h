// Keeps the calls of frameworks from the door until the machine has answered them.
//
// Thread-safe. Outlives the door and the machine's driver. What it keeps is as bounded as the calls
// that the door lets wait (DoorLimits::calls): one whose client has left goes.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "lib/base/mutex.h"
#include "services/engine_proxy/door/call.h"
#include "services/engine_proxy/engines/engine.h"
#include "services/engine_proxy/machine/effects.h"

namespace lorry::calls {

class CallDesk {
 public:
  struct Machine {
    // From the network, so that it may be refused: RESOURCE_EXHAUSTED.
    std::function<absl::Status(proxy::Event)> try_post;
    std::function<void(proxy::Event)> post;
  };
  explicit CallDesk(Machine machine) : machine_(std::move(machine)) {}

  // From the door.
  void Take(door::EngineCall call, door::CallTicket ticket) LORRY_EXCLUDES(mutex_);
  // For the driver that passes a call to the engine: the call, whose body goes with it; none where
  // its client has left. What the engine answered is its client's answer, once the machine gives one.
  std::optional<engines::RawCall> TextOf(uint64_t number) LORRY_EXCLUDES(mutex_);
  std::function<void(engines::RawReply)> ReplyTo(uint64_t number) LORRY_EXCLUDES(mutex_);
  // For whoever reads an adapter out of a call, once; none where its client has left.
  std::optional<std::string> BodyOf(uint64_t number) LORRY_EXCLUDES(mutex_);
  // From the machine.
  void Answer(const proxy::AnswerCall& answer) LORRY_EXCLUDES(mutex_);
  void Answer(const proxy::AnswerBinding& answer) LORRY_EXCLUDES(mutex_);

 private:
  struct Open {
    door::EngineCall call;  // with its body only where somebody asks for it yet
    door::CallTicket ticket;
    std::optional<door::CallReply> reply;  // the engine's own
  };
  std::optional<Open> Remove(uint64_t number) LORRY_EXCLUDES(mutex_);

  const Machine machine_;
  Mutex mutex_;
  uint64_t last_ LORRY_GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, Open> open_ LORRY_GUARDED_BY(mutex_);
};

}  // namespace lorry::calls
