#include "lib/peft/names.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "lib/base/error.h"
#include "lib/base/strings.h"
#include "lib/peft/refusal.h"

namespace lorry::peft {
namespace {

using Segments = std::vector<std::string>;

bool IsWrapper(std::string_view segment) {
  return segment == "_orig_mod" || segment == "_fsdp_wrapped_module" ||
         segment == "_checkpoint_wrapped_module";
}

void DropLeadingModule(Segments& segments) {
  const auto first =
      std::find_if(segments.begin(), segments.end(), [](auto& s) { return s != "module"; });
  segments.erase(segments.begin(), first);
}

// The name's segments without wrappers and without PEFT's prefix.
Segments Unwrap(std::string_view name) {
  Segments segments = absl::StrSplit(ToAbsl(name), '.');
  std::erase_if(segments, IsWrapper);
  DropLeadingModule(segments);
  if (segments.size() > 2 && segments[0] == "base_model" && segments[1] == "model") {
    segments.erase(segments.begin(), segments.begin() + 2);
    DropLeadingModule(segments);
  }
  return segments;
}

bool Has(const Segments& segments, std::string_view wanted) {
  return std::find(segments.begin(), segments.end(), wanted) != segments.end();
}

// Parameters of PEFT's other methods, by how their names begin.
bool IsOtherKind(std::string_view segment) {
  constexpr auto kPrefixes =
      std::to_array<std::string_view>({"ia3_", "hada_", "lokr_", "oft_", "boft_", "vera_lambda",
                                       "prompt_embeddings", "prompt_encoder"});
  return std::any_of(kPrefixes.begin(), kPrefixes.end(),
                     [&](auto p) { return segment.starts_with(p); });
}

// Why a name that is no lora_A or lora_B of a linear module cannot be served.
absl::Status RefuseForeign(std::string_view name, const Segments& segments) {
  const auto refuse = [&](std::string_view reason, std::string_view why) {
    return Refuse(reason, absl::StrCat("the tensor ", Quoted(name), " ", ToAbsl(why)));
  };
  if (Has(segments, "lora_magnitude_vector")) {
    return refuse("DORA_UNSUPPORTED",
                  "belongs to DoRA; train with use_dora=False or sync merged weights instead");
  }
  if (Has(segments, "modules_to_save")) {
    return refuse(
        "MODULES_TO_SAVE_UNSUPPORTED",
        "is a whole trained module; leave modules_to_save empty or sync merged weights instead");
  }
  const bool is_embedding = Has(segments, "embed_tokens") || Has(segments, "lm_head");
  if (Has(segments, "lora_embedding_A") || Has(segments, "lora_embedding_B") || is_embedding) {
    return refuse("EMBEDDING_UNSUPPORTED",
                  "belongs to trained embeddings or added tokens; train without them (leave "
                  "embed_tokens and lm_head out of target_modules) or sync merged weights instead");
  }
  if (std::any_of(segments.begin(), segments.end(), IsOtherKind)) {
    return refuse("ADAPTER_KIND_UNSUPPORTED",
                  "belongs to another kind of adapter; sync merged weights instead");
  }
  if (!segments.empty() && segments.back() == "bias") {
    return refuse("BIAS_UNSUPPORTED",
                  "is a bias; train with bias=\"none\" or sync merged weights instead");
  }
  return refuse("TENSOR_UNKNOWN",
                "is no lora_A or lora_B weight; publish the adapter's own tensors "
                "(get_peft_model_state_dict)");
}

struct Part {
  std::string_view module;
  uint64_t rows;  // of lora_B
};

// How wide the feed-forward block is that holds the module at `path`.
uint64_t InnerSize(const BaseModel& base, std::string_view path) {
  if (path.find(".experts.") != std::string_view::npos) return base.expert_intermediate_size;
  if (path.find(".shared_expert.") != std::string_view::npos)
    return base.shared_expert_intermediate_size;
  return base.intermediate_size;
}

// The parts of a fused module in the order in which its rows hold them, empty for any other module.
std::vector<Part> PartsOf(const BaseModel& base, std::string_view path) {
  const std::string_view module = ModuleOf(path);
  if (module == "qkv_proj") {
    const uint64_t kv = base.kv_heads * base.head_dim;
    return {{"q_proj", base.heads * base.head_dim}, {"k_proj", kv}, {"v_proj", kv}};
  }
  if (module == "gate_up_proj") {
    const uint64_t inner = InnerSize(base, path);
    return {{"gate_proj", inner}, {"up_proj", inner}};
  }
  return {};
}

absl::Status Split(const SourceTensor& tensor, size_t source, const LoraName& name,
                   const std::vector<Part>& parts, std::vector<PlannedTensor>& to) {
  uint64_t fused_rows = 0;
  for (const Part& part : parts) fused_rows += part.rows;
  if (tensor.shape.size() != 2 || (name.is_b && tensor.shape[0] != fused_rows)) {
    return Refuse("TENSOR_SHAPE",
                  absl::StrCat(Quoted(tensor.name), " is fused and has the shape [",
                               absl::StrJoin(tensor.shape, ","), "]; the base model asks for ",
                               fused_rows, " rows; publish for the model that was trained"));
  }
  const std::string parent = name.path.substr(0, name.path.size() - ModuleOf(name.path).size());
  uint64_t row = 0;
  for (const Part& part : parts) {
    const std::string to_name = CanonicalName(
        {.path = absl::StrCat(parent, ToAbsl(part.module)), .is_b = name.is_b, .adapter = ""});
    if (name.is_b) {
      to.push_back({to_name, source, row, row + part.rows});
      row += part.rows;
    } else {
      to.push_back({to_name, source, 0, tensor.shape[0]});
    }
  }
  return absl::OkStatus();
}

// Experts that are adapted as one parameter: lora_A is (experts * r, in), expert by expert; lora_B
// is (out, r * experts), an expert's columns each `experts` apart. ParamWrapper in PEFT's
// tuners/lora/layer.py.
struct Stack {
  uint64_t rank = 0;
  std::vector<Part> parts;  // of each expert, in the order in which the rows of its B hold them
};

constexpr std::string_view kNestedWrapper = ".base_layer";

std::string_view WithoutNesting(std::string_view path) {
  if (path.ends_with(kNestedWrapper)) path.remove_suffix(kNestedWrapper.size());
  return path;
}

// What the shapes of both sides say that is stacked: PEFT nests the wrappers of two parameters of
// one module in the order in which they were asked for, so that their names do not tell.
std::optional<Stack> StackOf(const BaseModel& base, const std::vector<uint64_t>& a,
                             const std::vector<uint64_t>& b) {
  const uint64_t hidden = base.hidden_size, inner = base.expert_intermediate_size;
  const bool pairs = a.size() == 2 && b.size() == 2 && a[0] == b[1] && a[0] > 0;
  if (!pairs || a[0] % base.experts != 0) return std::nullopt;
  const uint64_t rank = a[0] / base.experts;
  if (a[1] == hidden && b[0] == 2 * inner)
    return Stack{rank, {{"gate_proj", inner}, {"up_proj", inner}}};
  if (a[1] == inner && b[0] == hidden) return Stack{rank, {{"down_proj", hidden}}};
  return std::nullopt;
}

using Stacks = std::map<std::string, Stack>;  // by path

absl::StatusOr<Stacks> FindStacks(std::span<const SourceTensor> sources, const BaseModel& base) {
  Stacks stacks;
  if (base.architecture != "qwen2_moe" && base.architecture != "qwen3_moe") return stacks;
  std::map<std::string, std::array<std::vector<uint64_t>, 2>> shapes;
  for (const SourceTensor& tensor : sources) {
    LORRY_ASSIGN_OR_RETURN(const LoraName name, ReadName(tensor.name));
    if (WithoutNesting(name.path).ends_with(".mlp.experts"))
      shapes[name.path][name.is_b ? 1 : 0] = tensor.shape;
  }
  for (const auto& [path, both] : shapes) {
    const auto& [a, b] = both;
    const auto stack = StackOf(base, a, b);
    if (!stack.has_value()) {
      return Refuse("TENSOR_SHAPE",
                    absl::StrCat(Quoted(path), " adapts stacked experts with the shapes [",
                                 absl::StrJoin(a, ","), "] and [", absl::StrJoin(b, ","),
                                 "]; the base model has ", base.experts, " experts of ",
                                 base.hidden_size, " and ", base.expert_intermediate_size,
                                 "; publish for the model that was trained"));
    }
    stacks.emplace(path, *stack);
  }
  return stacks;
}

void Unstack(size_t source, const LoraName& name, uint64_t experts, const Stack& stack,
             std::vector<PlannedTensor>& to) {
  for (uint64_t expert = 0; expert < experts; ++expert) {
    uint64_t row = 0;
    for (const Part& part : stack.parts) {
      const std::string path =
          absl::StrCat(ToAbsl(WithoutNesting(name.path)), ".", expert, ".", ToAbsl(part.module));
      const std::string to_name = CanonicalName({.path = path, .is_b = name.is_b, .adapter = ""});
      if (name.is_b) {
        to.push_back({to_name, source, row, row + part.rows, expert, experts});
        row += part.rows;
      } else {
        to.push_back({to_name, source, expert * stack.rank, (expert + 1) * stack.rank});
      }
    }
  }
}

absl::Status CheckOneAdapter(const std::set<std::string>& adapters) {
  if (adapters.size() <= 1) return absl::OkStatus();
  std::vector<std::string> shown;
  for (const std::string& adapter : adapters) {
    if (shown.size() < 5) shown.push_back(Quoted(adapter));
  }
  return Refuse(
      "TENSOR_AMBIGUOUS",
      absl::StrCat("the tensors are of ", adapters.size(), " adapters (",
                   absl::StrJoin(shown, ", "),
                   "); leave those of the others out; lorry publish does so by --adapter-in-file"));
}

}  // namespace

std::string CanonicalName(const LoraName& name) {
  return absl::StrCat("base_model.model.", name.path,
                      name.is_b ? ".lora_B.weight" : ".lora_A.weight");
}

std::string_view ModuleOf(std::string_view path) {
  return path.substr(path.rfind('.') + 1);  // without a dot, npos + 1 is 0
}

absl::StatusOr<LoraName> ReadName(std::string_view name) {
  const Segments segments = Unwrap(name);
  const size_t count = segments.size();
  // [... path, "lora_A", "weight"] or [... path, "lora_A", adapter, "weight"]
  for (const size_t after : {1, 2}) {
    if (count < after + 2 || segments.back() != "weight") continue;
    const std::string& kind = segments[count - after - 1];
    if (kind != "lora_A" && kind != "lora_B") continue;
    const size_t path_segments = count - after - 1;
    const bool has_blank =
        std::any_of(segments.begin(), segments.end(), [](auto& s) { return s.empty(); });
    if (has_blank) break;
    return LoraName{
        .path = absl::StrJoin(segments.begin(),
                              segments.begin() + static_cast<ptrdiff_t>(path_segments), "."),
        .is_b = kind == "lora_B",
        .adapter = after == 2 ? segments[count - 2] : ""};
  }
  return RefuseForeign(name, segments);
}

absl::StatusOr<LoraName> ReadCanonicalName(std::string_view name) {
  LORRY_ASSIGN_OR_RETURN(LoraName read, ReadName(name));
  if (CanonicalName(read) != name) {
    return Refuse(
        "TENSOR_UNKNOWN",
        absl::StrCat("the tensor ", Quoted(name), " is not named as engines read it, which is ",
                     Quoted(CanonicalName(read)),
                     "; publish through Lorry's client, which renames it"));
  }
  return read;
}

absl::StatusOr<NamePlan> PlanNames(std::span<const SourceTensor> sources, const BaseModel* base,
                                   std::string_view adapter) {
  NamePlan plan;
  std::set<std::string> adapters, modules;
  if (base != nullptr && !base->complete) base = nullptr;
  Stacks stacks;
  if (base != nullptr) {
    LORRY_ASSIGN_OR_RETURN(stacks, FindStacks(sources, *base));
  }
  plan.unstacked = !stacks.empty();
  for (size_t i = 0; i < sources.size(); ++i) {
    LORRY_ASSIGN_OR_RETURN(const LoraName name, ReadName(sources[i].name));
    if (!adapter.empty() && !name.adapter.empty() && name.adapter != adapter) continue;
    adapters.insert(name.adapter);
    const auto parts = base != nullptr ? PartsOf(*base, name.path) : std::vector<Part>();
    const auto stack = stacks.find(name.path);
    if (stack != stacks.end()) {
      Unstack(i, name, base->experts, stack->second, plan.tensors);
      for (const Part& part : stack->second.parts) modules.emplace(part.module);
    } else if (!parts.empty()) {
      LORRY_RETURN_IF_ERROR(Split(sources[i], i, name, parts, plan.tensors));
      for (const Part& part : parts) modules.emplace(part.module);
      plan.split = true;
    } else {
      const uint64_t rows = sources[i].shape.empty() ? 0 : sources[i].shape[0];
      plan.tensors.push_back({CanonicalName(name), i, 0, rows});
      modules.emplace(ModuleOf(name.path));
    }
  }
  LORRY_RETURN_IF_ERROR(CheckOneAdapter(adapters));
  std::sort(plan.tensors.begin(), plan.tensors.end(),
            [](auto& a, auto& b) { return a.name < b.name; });
  const auto twin = std::adjacent_find(plan.tensors.begin(), plan.tensors.end(),
                                       [](auto& a, auto& b) { return a.name == b.name; });
  if (twin != plan.tensors.end()) {
    return Refuse("TENSOR_AMBIGUOUS",
                  absl::StrCat(Quoted(sources[twin->source].name), " and ",
                               Quoted(sources[(twin + 1)->source].name), " both map to ",
                               Quoted(twin->name), "; leave one out"));
  }
  plan.target_modules.assign(modules.begin(), modules.end());
  return plan;
}

}  // namespace lorry::peft
