#include "tools/mutants/runtime.h"

#include <cstdio>
#include <cstdlib>

namespace lorry::mutants {

int active = 0;
std::atomic<uint8_t> reached[kMutantsMax];

namespace {

// Before every other initialiser, so that what they compute is mutated too.
[[gnu::constructor(101)]] void Choose() {
  if (const char* chosen = std::getenv("LORRY_MUTANT"))
    active = static_cast<int>(std::strtol(chosen, nullptr, 10));
}

// The numbers that were reached, a line each, for whoever asks by LORRY_MUTANTS_REACHED=FILE.
[[gnu::destructor(101)]] void Tell() {
  const char* path = std::getenv("LORRY_MUTANTS_REACHED");
  std::FILE* file = path == nullptr ? nullptr : std::fopen(path, "w");
  if (file == nullptr) return;
  for (int id = 0; id < kMutantsMax; ++id) {
    if (reached[id].load(std::memory_order_relaxed) != 0) std::fprintf(file, "%d\n", id);
  }
  std::fclose(file);
}

}  // namespace
}  // namespace lorry::mutants
