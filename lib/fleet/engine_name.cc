#include "lib/fleet/engine_name.h"

#include <algorithm>
#include <charconv>

#include "absl/strings/str_cat.h"
#include "lib/base/strings.h"

namespace lorry::fleet {
namespace {

constexpr size_t kHashDigits = 12;

// Engines keep these in one module, and take any name of it for all of them.
std::string_view Fused(std::string_view module) {
  if (module == "q_proj" || module == "k_proj" || module == "v_proj") return "qkv_proj";
  if (module == "gate_proj" || module == "up_proj") return "gate_up_proj";
  return module;
}

}  // namespace

std::string_view ToString(EngineKind kind) {
  switch (kind) {
    case EngineKind::kUnknown:
      return "unknown";
    case EngineKind::kSglang:
      return "sglang";
    case EngineKind::kVllm:
      return "vllm";
  }
  return "unknown";
}

std::string_view ToString(Render render) {
  switch (render) {
    case Render::kPlain:
      return "plain";
    case Render::kRsloraFolded:
      return "rslora-folded";
  }
  return "plain";
}

Render RenderFor(EngineKind kind, const VersionTraits& traits) {
  return kind == EngineKind::kSglang && traits.rslora ? Render::kRsloraFolded : Render::kPlain;
}

EngineName MakeEngineName(const VersionKey& key, const Digest& digest, Render render) {
  const Sha256 hash = HashSha256(absl::StrCat("lorry.engine-name.v2\n", key.run.value, "\n",
                                              digest.value, "\n", ToAbsl(ToString(render))));
  const std::string hex = ToHex(hash).substr(0, kHashDigits);
  return EngineName(absl::StrCat(key.adapter.value, "-v", key.number.value, "-", hex));
}

std::optional<VersionKey> KeyOfEngineName(const EngineName& name) {
  const std::string_view text = name.value;
  const size_t dash = text.rfind('-');
  if (dash == text.npos) return std::nullopt;
  const std::string_view hash = text.substr(dash + 1), before = text.substr(0, dash);
  const bool is_hash =
      hash.size() == kHashDigits && hash.find_first_not_of("0123456789abcdef") == hash.npos;
  const size_t mark = before.rfind("-v");
  if (!is_hash || mark == before.npos) return std::nullopt;
  const std::string_view adapter = before.substr(0, mark), digits = before.substr(mark + 2);
  uint64_t number = 0;
  const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  // A number has one spelling: 7, and neither 07 nor 7x.
  if (read.ec != std::errc() || absl::StrCat(number) != ToAbsl(digits)) return std::nullopt;
  if (!CheckAdapterName(adapter).ok()) return std::nullopt;
  return VersionKey{AdapterName(std::string(adapter)), RunId(), VersionNumber(number)};
}

std::string_view SlotsFlag(EngineKind kind) {
  switch (kind) {
    case EngineKind::kUnknown:
      break;
    case EngineKind::kSglang:
      return "--max-loaded-loras, or --max-loras-per-batch with --attn-dp-size";
    case EngineKind::kVllm:
      return "--max-cpu-loras";
  }
  return "the engine's adapter limit";
}

std::string_view BatchFlag(EngineKind kind) {
  switch (kind) {
    case EngineKind::kUnknown:
      break;
    case EngineKind::kSglang:
      return "--max-loras-per-batch";
    case EngineKind::kVllm:
      return "--max-loras";
  }
  return "the engine's batch limit";
}

std::string WhyNotServable(const EngineLimits& limits, const VersionTraits& traits) {
  if (limits.rank_limit != 0 && traits.rank_max > limits.rank_limit) {
    return absl::StrCat("rank ", traits.rank_max, " is above the engine's --max-lora-rank ",
                        limits.rank_limit,
                        "; restart the engine with a larger one or train with a smaller r");
  }
  if (traits.rank_or_alpha_pattern) {
    return "rank_pattern or alpha_pattern gives modules another rank or alpha, which SGLang and "
           "older "
           "vLLM ignore, so that Lorry serves it nowhere; train with one r and one lora_alpha";
  }
  if (traits.partial_groups && limits.kind == EngineKind::kSglang) {
    return "SGLang takes q, k and v of a layer together, and gate with up, and may die of an "
           "adapter that has only some; "
           "train with q_proj and v_proj (k_proj with them), and gate_proj wherever up_proj is";
  }
  if (!limits.engine_modules.empty()) {
    for (const std::string& module : traits.modules) {
      if (std::none_of(limits.engine_modules.begin(), limits.engine_modules.end(),
                       [&](const std::string& own) { return Fused(own) == Fused(module); })) {
        return absl::StrCat("module ", module,
                            " is not among the engine's --lora-target-modules; add it there");
      }
    }
  }
  return "";
}

}  // namespace lorry::fleet
