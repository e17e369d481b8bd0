// One tensor name a line: refused with a reason, or planned under canonical names that read back
// unchanged.
#include <set>

#include "absl/strings/str_split.h"
#include "lib/base/check.h"
#include "lib/base/error.h"
#include "lib/base/strings.h"
#include "lib/peft/names.h"

using namespace lorry;        // NOLINT(google-build-using-namespace)
using namespace lorry::peft;  // NOLINT(google-build-using-namespace)

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const BaseModel kBase{.hidden_size = 16,
                        .layers = 2,
                        .complete = true,
                        .intermediate_size = 32,
                        .heads = 4,
                        .kv_heads = 2,
                        .head_dim = 4,
                        .vocab_size = 64};
  const BaseModel kMixture{.architecture = "qwen3_moe",
                           .hidden_size = 4,
                           .layers = 2,
                           .complete = true,
                           .heads = 4,
                           .kv_heads = 2,
                           .head_dim = 4,
                           .experts = 2,
                           .expert_intermediate_size = 32};
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  std::vector<SourceTensor> sources;
  for (const auto line : absl::StrSplit(ToAbsl(text), '\n')) {
    // The fused B has the rows that kBase asks for, and stacked experts have the shapes that kMixture
    // asks for, so that taking them apart is reached.
    const bool is_wide = line.find("gate_up") != absl::string_view::npos ||
                         line.find("experts.lora_B") != absl::string_view::npos;
    const bool is_a = line.find("lora_A") != absl::string_view::npos;
    sources.push_back({std::string(line), {is_wide ? 64u : is_a ? 4u : 32u, 4}});
  }
  for (const BaseModel* base : {&kBase, &kMixture, static_cast<const BaseModel*>(nullptr)}) {
    const auto plan = PlanNames(sources, base);
    if (!plan.ok()) {
      LORRY_CHECK(!ReasonOf(plan.status()).empty());
      continue;
    }
    std::set<std::string> modules;
    for (const PlannedTensor& tensor : plan->tensors) {
      LORRY_CHECK(tensor.source < sources.size());
      LORRY_CHECK(tensor.row_begin <= tensor.row_end &&
                  tensor.row_end <= sources[tensor.source].shape[0]);
      LORRY_CHECK(tensor.column < tensor.column_step &&
                  sources[tensor.source].shape[1] % tensor.column_step == 0);
      const auto name = ReadCanonicalName(tensor.name);
      LORRY_CHECK(name.ok());
      modules.emplace(ModuleOf(name->path));
    }
    LORRY_CHECK(std::vector<std::string>(modules.begin(), modules.end()) == plan->target_modules);
  }
  return 0;
}
