// How many versions may be held at the store in one name. Every change sends the whole set: so many
// names of the greatest length fit a message of 4 MiB.
#pragma once

#include <cstddef>

namespace lorry::fleet {

inline constexpr size_t kHeldVersionsMax = 50'000;

}  // namespace lorry::fleet
