// How far back a pool's decisions are remembered.
#pragma once

#include <cstddef>

namespace lorry::fleet {

// Decided versions remembered per pool, and so the most that a policy may keep or tolerate: more than
// engines have slots for, few enough for one record that each sync writes anew.
inline constexpr size_t kWindowMax = 64;

}  // namespace lorry::fleet
