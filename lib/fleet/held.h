// What the store and those who hold versions there in a name agree on.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace lorry::fleet {

// Every change sends the whole set: so many names of the greatest length fit a message of 4 MiB.
inline constexpr size_t kHeldVersionsMax = 50'000;

// Of a holder that begins then, and that neither records nor store remember: the seconds since 2026.
inline uint64_t NewIncarnation(int64_t unix_seconds) {
  constexpr int64_t kUnixSecondsOf2026 = int64_t{490'896} * 3'600;
  return static_cast<uint64_t>(std::max<int64_t>(1, unix_seconds - kUnixSecondsOf2026));
}

}  // namespace lorry::fleet
