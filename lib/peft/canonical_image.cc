#include "lib/peft/canonical_image.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "lib/base/error.h"
#include "lib/peft/json.h"

namespace lorry::peft {
namespace {

absl::StatusOr<ImageHeader> ReadHeader(std::span<const std::byte> front, uint64_t image_bytes) {
  LORRY_ASSIGN_OR_RETURN(const uint64_t needed, HeaderBytes(front, image_bytes));
  return ParseImageHeader(front.first(std::min<uint64_t>(needed, front.size())), image_bytes);
}

constexpr char kConfigFile[] = "adapter_config.json";
constexpr char kTargetParameters[] = "target_parameters";

// The config without what it says of stacked experts, which the base model may tell how to take
// apart.
absl::StatusOr<std::string> WithoutStacks(const std::string& text) {
  LORRY_ASSIGN_OR_RETURN(nlohmann::json json, ParseJsonObject(text, kConfigFile));
  return json.erase(kTargetParameters) > 0 ? json.dump(2) : text;
}

// A pattern by the name of what was taken apart would match none of the parts, which would be served
// with another scaling than they were trained with.
absl::Status CheckOneRank(const Config& config) {
  if (config.rank_pattern.empty() && config.alpha_pattern.empty()) return absl::OkStatus();
  return Error(absl::StatusCode::kInvalidArgument, "CONFIG_UNSUPPORTED",
               "rank_pattern and alpha_pattern beside fused modules or stacked experts cannot be "
               "carried over to their parts; train them with one r and one lora_alpha");
}

// The published config as it was written, but for target_modules, which become what the image has:
// trainers write expressions, fused names and paths there, and engines understand none of them.
absl::StatusOr<std::string> Settle(std::string text, const NamePlan& plan) {
  if (plan.unstacked) {
    LORRY_ASSIGN_OR_RETURN(text, WithoutStacks(text));
  }
  LORRY_ASSIGN_OR_RETURN(const Config config, ParseConfig(text));
  if (plan.unstacked || plan.split) LORRY_RETURN_IF_ERROR(CheckOneRank(config));
  if (config.target_modules.expression.empty() &&
      config.target_modules.names == plan.target_modules) {
    return text;
  }
  LORRY_ASSIGN_OR_RETURN(nlohmann::json json, ParseJsonObject(text, kConfigFile));
  json["target_modules"] = plan.target_modules;
  return json.dump(2);
}

std::vector<SourceTensor> SourcesOf(const ImageHeader& header) {
  std::vector<SourceTensor> sources;
  sources.reserve(header.tensors.size());
  for (const Tensor& tensor : header.tensors) sources.push_back({tensor.name, tensor.shape});
  return sources;
}

std::vector<TensorSpec> SpecsOf(const NamePlan& plan, const ImageHeader& header) {
  std::vector<TensorSpec> specs;
  specs.reserve(plan.tensors.size());
  for (const PlannedTensor& planned : plan.tensors) {
    const Tensor& source = header.tensors[planned.source];
    std::vector<uint64_t> shape = source.shape;
    if (!shape.empty()) shape[0] = planned.row_end - planned.row_begin;
    if (planned.column_step > 1) shape[1] /= planned.column_step;
    specs.push_back({planned.name, source.dtype, std::move(shape)});
  }
  return specs;
}

}  // namespace

absl::StatusOr<CanonicalImage> PlanCanonicalImage(std::span<const std::byte> front,
                                                  uint64_t image_bytes,
                                                  std::string_view config_json,
                                                  const BaseModel* base,
                                                  std::string_view adapter_in_file) {
  CanonicalImage planned;
  const std::string text(config_json);
  // What makes it no plain LoRA is told before what is amiss with its tensors.
  LORRY_ASSIGN_OR_RETURN(const std::string plain, base != nullptr ? WithoutStacks(text) : text);
  LORRY_RETURN_IF_ERROR(ParseConfig(plain).status());
  LORRY_ASSIGN_OR_RETURN(planned.source, ReadHeader(front, image_bytes));
  LORRY_ASSIGN_OR_RETURN(planned.plan, PlanNames(SourcesOf(planned.source), base, adapter_in_file));
  LORRY_ASSIGN_OR_RETURN(planned.config_json, Settle(text, planned.plan));
  std::optional<Metadata> metadata;
  if (!planned.source.metadata.empty()) metadata = planned.source.metadata;
  LORRY_ASSIGN_OR_RETURN(planned.layout,
                         LayOutImage(SpecsOf(planned.plan, planned.source), metadata));
  LORRY_ASSIGN_OR_RETURN(planned.config, ParseConfig(planned.config_json));
  LORRY_ASSIGN_OR_RETURN(planned.adapter, ValidateAdapter(planned.layout.header, planned.config));
  if (base != nullptr) LORRY_RETURN_IF_ERROR(CheckFits(planned.adapter, *base));
  return planned;
}

void WriteCanonicalImage(const CanonicalImage& planned, std::span<const std::byte> file,
                         std::span<std::byte> image) {
  std::ranges::copy(std::as_bytes(std::span(planned.layout.header_bytes)), image.begin());
  std::map<std::string_view, const PlannedTensor*> by_name;
  for (const PlannedTensor& tensor : planned.plan.tensors) by_name[tensor.name] = &tensor;
  for (const Tensor& tensor : planned.layout.header.tensors) {
    const PlannedTensor& from = *by_name.at(tensor.name);
    const Tensor& source = planned.source.tensors[from.source];
    const uint64_t rows = source.shape.empty() ? 1 : std::max<uint64_t>(source.shape[0], 1);
    const uint64_t row_bytes = (source.end - source.begin) / rows;
    const std::span<std::byte> to = image.subspan(tensor.begin, tensor.end - tensor.begin);
    const std::byte* at = file.data() + source.begin + from.row_begin * row_bytes;
    if (from.column_step == 1) {
      std::memcpy(to.data(), at, to.size());
      continue;
    }
    const uint64_t item = row_bytes / source.shape[1], step = from.column_step * item;
    at += from.column * item;  // a row ends where the next begins, whole steps later
    for (uint64_t done = 0; done < to.size(); done += item, at += step)
      std::memcpy(to.data() + done, at, item);
  }
}

}  // namespace lorry::peft
