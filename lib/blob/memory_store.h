// blob::Store in memory, for tests. `bytes_max` plays the size of the disk.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>

#include "lib/blob/store.h"

namespace lorry::blob {

std::unique_ptr<Store> MakeMemoryStore(uint64_t bytes_max = std::numeric_limits<uint64_t>::max());

}  // namespace lorry::blob
