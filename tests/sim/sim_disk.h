// What a directory of an image holds, as the simulated engines read it.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "lib/base/digest.h"
#include "lib/base/ids.h"

namespace lorry::sim {

// What it does to engines.
enum class Harm { kNone, kKillsAtLoad, kKillsAtUse, kRefusedByAll, kRefusedBySome };

struct SimDirectory {
  Digest digest;   // of what is in it
  VersionKey key;  // as which it was fetched; at the store, the first that had these bytes
  Harm harm = Harm::kNone;
  bool is_readable = true;     // by anybody, until it is fetched again
  uint64_t hidden_size = 1;    // of the base model that it was trained on
  bool changes = true;         // the base model's answers
  bool must_differ = false;    // and the trainer said so
  bool has_reference = false;  // and what it answers itself
};
using SimDisk = std::map<std::string, SimDirectory>;

// Of a directory that has other bytes than it should.
inline const Digest kRotten{"rotten"};

}  // namespace lorry::sim
