// The engine's names of bindings: as those of versions, a hash over the content, of an adapter that
// no store has.
#pragma once

#include "lib/fleet/engine_name.h"

namespace lorry::proxy {

// Runs of the store count from 1.
inline VersionKey BindingKey() { return {AdapterName("lorry.binding"), RunId(), VersionNumber()}; }

inline EngineName BindingName(const Digest& digest, fleet::Render render) {
  return fleet::MakeEngineName(BindingKey(), digest, render);
}

}  // namespace lorry::proxy
