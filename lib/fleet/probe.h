// How an engine is asked whether it applies an adapter, and what its answer measures. Plain values,
// shared by the proxy's machine, its engines and the simulator.
#pragma once

namespace lorry::fleet {

// That the name is listed; a token by it; its log-probabilities beside the base model's.
enum class ProbeKind { kPresence, kToken, kCompare };

// Of the log-probabilities that one prompt gets: the largest difference of one of them to the base
// model's, and between two runs of the base model.
struct ProbeComparison {
  double difference = 0;
  double noise = 0;
};

}  // namespace lorry::fleet
