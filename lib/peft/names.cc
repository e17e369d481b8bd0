#include "lib/peft/names.h"

#include <algorithm>
#include <array>
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
                  "belongs to trained embeddings or added tokens; train without them or sync "
                  "merged weights instead");
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

// The parts of a fused module in the order in which its rows hold them, empty for any other module.
std::vector<Part> PartsOf(const BaseModel& base, std::string_view module) {
  if (module == "qkv_proj") {
    const uint64_t kv = base.kv_heads * base.head_dim;
    return {{"q_proj", base.heads * base.head_dim}, {"k_proj", kv}, {"v_proj", kv}};
  }
  if (module == "gate_up_proj") {
    return {{"gate_proj", base.intermediate_size}, {"up_proj", base.intermediate_size}};
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

absl::Status CheckOneAdapter(const std::set<std::string>& adapters) {
  if (adapters.size() <= 1) return absl::OkStatus();
  std::vector<std::string> shown;
  for (const std::string& adapter : adapters) {
    if (shown.size() < 5) shown.push_back(Quoted(adapter));
  }
  return Refuse("TENSOR_AMBIGUOUS",
                absl::StrCat("the tensors are of ", adapters.size(), " adapters (",
                             absl::StrJoin(shown, ", "), "); name the one to publish"));
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
  for (size_t i = 0; i < sources.size(); ++i) {
    LORRY_ASSIGN_OR_RETURN(const LoraName name, ReadName(sources[i].name));
    if (!adapter.empty() && !name.adapter.empty() && name.adapter != adapter) continue;
    adapters.insert(name.adapter);
    const bool splits = base != nullptr && base->complete;
    const auto parts = splits ? PartsOf(*base, ModuleOf(name.path)) : std::vector<Part>();
    if (!parts.empty()) {
      LORRY_RETURN_IF_ERROR(Split(sources[i], i, name, parts, plan.tensors));
      for (const Part& part : parts) modules.emplace(part.module);
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
