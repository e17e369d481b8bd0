// What the engine calls a binding, and what people are told instead of a directory where it has
// none.
#pragma once

#include "lib/fleet/engine_name.h"

namespace lorry::proxy {

// As SGLang lists an adapter that came as tensors in a call. No directory has this path: they begin
// with a slash.
inline constexpr char kTensorsPath[] = "__tensor__";

// Runs of the store count from 1.
inline VersionKey BindingKey() { return {AdapterName("lorry.binding"), RunId(), VersionNumber()}; }

// As those of versions, a hash over the content, of an adapter that no store has.
inline EngineName BindingName(const Digest& digest, fleet::Render render) {
  return fleet::MakeEngineName(BindingKey(), digest, render);
}

}  // namespace lorry::proxy
