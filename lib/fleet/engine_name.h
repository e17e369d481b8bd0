// What an engine sees of a version, and how a version is rendered for one kind of engine.
//
// Engine names certify themselves: the hex part is a hash over (run, digest, render id), so one
// name never means two versions or contents, whoever computes it and after any loss of state. Pure
// functions, no state, any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/digest.h"
#include "lib/base/ids.h"
#include "lib/peft/traits.h"

namespace lorry::fleet {

enum class EngineKind { kUnknown, kSglang, kVllm };
std::string_view ToString(EngineKind kind);

using VersionTraits = peft::Traits;

// "plain": the stored files as they are. "rslora-folded": use_rslora=false, lora_alpha' =
// lora_alpha * sqrt(r), because SGLang scales by alpha / r whatever use_rslora says
// (sgl-project/sglang#40835).
enum class Render { kPlain, kRsloraFolded };
std::string_view ToString(Render render);
Render RenderFor(EngineKind kind, const VersionTraits& traits);

// {adapter}-v{number}-{12 hex}
EngineName MakeEngineName(const VersionKey& key, const Digest& digest, Render render);

// What a name that MakeEngineName may have made says of itself; nothing for other names. The run is
// not in it.
std::optional<VersionKey> KeyOfEngineName(const EngineName& name);

// Why an engine of this kind cannot serve a version, empty when it can. The text names the flag or
// the config field to change. `rank_limit` 0 and empty `engine_modules` mean "not known, do not
// judge".
struct EngineLimits {
  EngineKind kind = EngineKind::kUnknown;
  uint32_t rank_limit = 0;
  uint32_t slots = 0;  // adapters the engine's registry holds; 0 = not bounded by the engine
  // Distinct adapters in one batch; with 1 no other is probed while one runs. 0 = not known.
  uint32_t batch_slots = 0;
  std::vector<std::string> engine_modules;  // modules that --lora-target-modules names; empty = all
  auto operator<=>(const EngineLimits&) const = default;
};
// The flags that set `slots` and `batch_slots`; words where the kind is not known.
std::string_view SlotsFlag(EngineKind kind);
std::string_view BatchFlag(EngineKind kind);
std::string WhyNotServable(const EngineLimits& limits, const VersionTraits& traits);

}  // namespace lorry::fleet
