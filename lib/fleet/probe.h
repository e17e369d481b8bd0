// How an engine is asked whether it applies an adapter, and what its answer measures. Plain values,
// shared by the proxy's machine, its engines and the simulator.
#pragma once

#include <cstdint>
#include <optional>

#include "lib/peft/reference.h"

namespace lorry::fleet {

// That the name is listed; a token by it; its log-probabilities beside the base model's; beside the
// trainer's, too.
enum class ProbeKind { kPresence, kToken, kCompare, kReference };

struct ProbeQuestion {
  ProbeKind kind = ProbeKind::kToken;
  peft::Reference reference = {};  // kReference: whose tokens are asked for
};

// Of the log-probabilities that one prompt gets: the largest difference of one of them to the base
// model's, and between two runs of the base model.
struct ProbeComparison {
  double difference = 0;
  double noise = 0;
};

// Of an engine's log-probabilities of a reference's tokens: how far they are from the trainer's, in
// nats.
struct ReferenceGap {
  double mean = 0;
  double max = 0;
  // How far the base model is from them in the mean, by the trainer's own arithmetic; nothing where
  // it did not say.
  std::optional<double> base = {};
};

// An engine that answered as the base model would be as far from the trainer's model as that is.
bool TellsFromBase(const ReferenceGap& gap);

// What was asked for and the engine could tell.
struct ProbeAnswer {
  // kCompare; kReference, where the gap leaves open whether it was the base model that answered
  std::optional<ProbeComparison> compared = {};
  std::optional<ReferenceGap> gap = {};  // kReference
};

// The gap as it is reported, in millionths of a nat.
struct ObservedGap {
  uint32_t mean_ppm = 0;
  uint32_t max_ppm = 0;
  auto operator<=>(const ObservedGap&) const = default;
};
ObservedGap ToObserved(const ReferenceGap& gap);

}  // namespace lorry::fleet
