// What a directory of an image holds, as the simulated engines read it.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "lib/base/digest.h"

namespace lorry::sim {

struct SimDirectory {
  Digest digest;             // of what is in it
  bool kills = false;        // an engine that loads it dies
  uint64_t hidden_size = 1;  // of the base model that it was trained on
  bool changes = true;       // the base model's answers
  bool must_differ = false;  // and the trainer said so
};
using SimDisk = std::map<std::string, SimDirectory>;

}  // namespace lorry::sim
