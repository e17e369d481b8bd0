#include "lib/peft/validate.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "lib/base/error.h"
#include "lib/base/strings.h"
#include "lib/peft/names.h"
#include "lib/peft/refusal.h"

namespace lorry::peft {
namespace {

struct Pair {
  std::optional<size_t> a, b;
};

std::string ShapeText(const Tensor& tensor) {
  return absl::StrCat("[", absl::StrJoin(tensor.shape, ","), "]");
}

absl::Status CheckTensor(const Tensor& tensor) {
  if (!IsAdapterDtype(tensor.dtype)) {
    return Refuse("TENSOR_DTYPE",
                  absl::StrCat(Quoted(tensor.name), " is ", ToAbsl(ToString(tensor.dtype)),
                               ", engines read F32, F16 and BF16; cast it before publishing"));
  }
  const bool is_matrix = tensor.shape.size() == 2 && tensor.shape[0] > 0 && tensor.shape[1] > 0;
  if (!is_matrix) {
    return Refuse("TENSOR_SHAPE",
                  absl::StrCat(Quoted(tensor.name), " has the shape ", ShapeText(tensor),
                               ", a LoRA weight has two dimensions; publish one matrix a module"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::map<std::string, Pair>> PairUp(const ImageHeader& header) {
  std::map<std::string, Pair> pairs;
  for (size_t i = 0; i < header.tensors.size(); ++i) {
    LORRY_ASSIGN_OR_RETURN(const LoraName name, ReadCanonicalName(header.tensors[i].name));
    LORRY_RETURN_IF_ERROR(CheckTensor(header.tensors[i]));
    Pair& pair = pairs[name.path];
    (name.is_b ? pair.b : pair.a) = i;
  }
  return pairs;
}

// Whether `rank` is what the config says of `path`; any rank it names will do where only PEFT can
// tell.
bool RankFits(const Config& config, std::string_view path, uint64_t rank) {
  const auto configured = RankOf(config, path);
  if (configured) return rank == *configured;
  return rank == config.r || std::any_of(config.rank_pattern.begin(), config.rank_pattern.end(),
                                         [&](const auto& entry) { return entry.second == rank; });
}

// PEFT's own match of a list of names. An expression is left to PEFT: it made the tensors from it.
bool IsTargeted(const ModuleSet& targets, std::string_view path) {
  if (targets.names.empty()) return true;
  return std::any_of(targets.names.begin(), targets.names.end(), [&](std::string_view name) {
    if (!path.ends_with(name)) return false;
    return path.size() == name.size() || path[path.size() - name.size() - 1] == '.';
  });
}

// The name of the part of the model that holds the module, if that sees or hears or leads from there
// to the text model; else empty. Layers of the text model are none, however their modules are named.
absl::string_view TowerOf(std::string_view path) {
  static constexpr std::array<absl::string_view, 14> kWords = {
      "tower", "visual", "vision", "vit",       "vpm",       "image",     "video",
      "audio", "speech", "apm",    "connector", "projector", "resampler", "qformer"};
  for (const absl::string_view part :
       absl::StrSplit(ToAbsl(path.substr(0, path.find(".layers."))), '.')) {
    for (const absl::string_view word : absl::StrSplit(part, '_')) {
      if (std::find(kWords.begin(), kWords.end(), word) != kWords.end()) return part;
    }
  }
  return "";
}

// SGLang leaves LoRA on towers out, or takes it for the text model's layer of the same number and
// ends; vLLM leaves it out unless it has --enable-tower-connector-lora, which is experimental.
absl::Status CheckTower(std::string_view path) {
  const absl::string_view tower = TowerOf(path);
  if (tower.empty()) return absl::OkStatus();
  return Refuse("TOWER_UNSUPPORTED",
                absl::StrCat(Quoted(path), " is of ", Quoted(ToStd(tower)),
                             ", beside the text model, where engines leave LoRA out or die of it; "
                             "train the text model alone: LoraConfig(exclude_modules=\".*",
                             tower, ".*\")"));
}

absl::Status CheckPair(const Tensor& a, const Tensor& b, const Config& config,
                       std::string_view path) {
  if (a.shape[0] != b.shape[1]) {
    return Refuse(
        "TENSOR_SHAPE",
        absl::StrCat(Quoted(path), ": lora_A ", ShapeText(a), " (r, in) and lora_B ", ShapeText(b),
                     " (out, r) do not share one r; publish both from the same model"));
  }
  if (!RankFits(config, path, a.shape[0])) {
    return Refuse("RANK_MISMATCH",
                  absl::StrCat(Quoted(path), " has rank ", a.shape[0], ", the config says ",
                               RankOf(config, path).value_or(config.r),
                               "; publish the adapter_config.json that was trained with"));
  }
  if (!IsTargeted(config.target_modules, path)) {
    return Refuse("MODULE_UNKNOWN",
                  absl::StrCat(Quoted(path),
                               " is not among the config's target_modules; publish the "
                               "adapter_config.json that was trained with"));
  }
  return absl::OkStatus();
}

// What the trainer says of how much the adapter changes its model. 0: nothing.
absl::StatusOr<uint32_t> ParseRelativeNorm(const std::string& text) {
  uint32_t ppm = 0;
  if (absl::SimpleAtoi(text, &ppm)) return ppm;
  return Refuse("IMAGE_MALFORMED",
                absl::StrCat("the image's metadata gives ", ToAbsl(kRelativeNormKey), " as ",
                             Quoted(text), ", which is no number of millionths; leave it out"));
}

// What the trainer says besides the tensors; keys of others are theirs.
absl::Status ReadMetadata(const Metadata& metadata, Adapter& adapter) {
  for (const auto& [key, text] : metadata) {
    if (key == kRelativeNormKey) {
      LORRY_ASSIGN_OR_RETURN(adapter.traits.relative_norm_ppm, ParseRelativeNorm(text));
    } else if (key == kReferenceKey) {
      LORRY_ASSIGN_OR_RETURN(adapter.reference, ParseReference(text));
    } else if (key == kTrainedOnKey) {
      LORRY_ASSIGN_OR_RETURN(adapter.trained_on, ParseTrainedOn(text));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Adapter> ValidateAdapter(const ImageHeader& header, const Config& config) {
  LORRY_ASSIGN_OR_RETURN(const auto pairs, PairUp(header));
  Adapter adapter;
  for (const auto& [path, pair] : pairs) {
    if (!pair.a || !pair.b) {
      return Refuse("TENSOR_UNPAIRED",
                    absl::StrCat(Quoted(path), " has no ", pair.a ? "lora_B" : "lora_A",
                                 "; publish both tensors of every module"));
    }
    LORRY_RETURN_IF_ERROR(CheckTower(path));
    const Tensor &a = header.tensors[*pair.a], &b = header.tensors[*pair.b];
    LORRY_RETURN_IF_ERROR(CheckPair(a, b, config, path));
    adapter.modules.push_back({.path = path,
                               .a = *pair.a,
                               .b = *pair.b,
                               .rank = static_cast<uint32_t>(a.shape[0]),
                               .in = a.shape[1],
                               .out = b.shape[0]});
  }
  adapter.traits = TraitsOf(config, adapter.modules);
  LORRY_RETURN_IF_ERROR(ReadMetadata(header.metadata, adapter));
  return adapter;
}

absl::Status CheckFits(const Adapter& adapter, const BaseModel& base) {
  const auto refuse = [&](const std::string& what) {
    return Refuse("BASE_MODEL_MISMATCH",
                  absl::StrCat(what, " (", ToString(base),
                               "); publish an adapter that was trained on this model, or put it "
                               "into a pool of engines that serve the model it was trained on"));
  };
  if (IsOtherArchitecture(adapter.trained_on, base)) {
    return refuse(absl::StrCat("it was trained on a model of the architecture ",
                               Quoted(adapter.trained_on.architecture)));
  }
  const uint32_t token = LargestToken(adapter.reference);
  if (base.vocab_size > 0 && token >= base.vocab_size) {
    return refuse(absl::StrCat("its reference log-probabilities are of token ", token,
                               ", and the base model has ", base.vocab_size, " tokens"));
  }
  for (const AdapterModule& module : adapter.modules) {
    const auto shape = ShapeOf(base, module.path);
    if (!shape) {
      return refuse(absl::StrCat("the base model has no linear module ", Quoted(module.path)));
    }
    const bool fits =
        (shape->in == 0 || shape->in == module.in) && (shape->out == 0 || shape->out == module.out);
    if (fits) continue;
    const auto side = [](uint64_t size) { return size == 0 ? "any" : absl::StrCat(size); };
    return refuse(absl::StrCat(Quoted(module.path), " takes ", module.in, " inputs and gives ",
                               module.out, " outputs, in the base model it takes ", side(shape->in),
                               " and gives ", side(shape->out)));
  }
  return absl::OkStatus();
}

}  // namespace lorry::peft
