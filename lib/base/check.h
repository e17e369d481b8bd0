// CHECK(condition): a programmer error ends the process, in release builds too.
// Operating errors (the network, a disk, a hostile peer) are absl::Status and never CHECKed.
#pragma once

#include <cstdio>
#include <cstdlib>

#define LORRY_CHECK(condition)                                                           \
  do {                                                                                   \
    if (!(condition)) [[unlikely]] {                                                     \
      std::fprintf(stderr, "%s:%d: CHECK failed: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                      \
    }                                                                                    \
  } while (false)
