// kv::Store in a process' memory: for tests and simulations. Nothing lasts.
#pragma once

#include <memory>

#include "lib/kv/store.h"

namespace lorry::kv {

std::unique_ptr<Store> MakeMemoryStore();

}  // namespace lorry::kv
