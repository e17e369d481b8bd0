#include "clients/cpp/peft_directory.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/error.h"
#include "lib/base/strings.h"
#include "lib/peft/config.h"
#include "lib/peft/json.h"
#include "lib/peft/names.h"
#include "lib/peft/validate.h"
#include "lib/transfer/image_file.h"

namespace lorry::client {
namespace {

absl::Status Invalid(const std::string& message) {
  return Error(absl::StatusCode::kInvalidArgument, "DIRECTORY_INVALID", message);
}

// Configs are kilobytes; lib/peft refuses longer ones, so no more than that is ever read.
absl::StatusOr<std::string> ReadText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return Invalid(absl::StrCat(path, " cannot be read"));
  std::string text(peft::kConfigBytesMax + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  return text;
}

absl::StatusOr<std::optional<peft::BaseModel>> ReadBaseModel(const std::string& path) {
  if (path.empty()) return std::optional<peft::BaseModel>();
  LORRY_ASSIGN_OR_RETURN(const std::string text, ReadText(path));
  LORRY_ASSIGN_OR_RETURN(peft::BaseModel model, peft::ParseBaseModel(text));
  return model;
}

absl::StatusOr<peft::ImageHeader> ReadHeader(std::span<const std::byte> bytes) {
  LORRY_ASSIGN_OR_RETURN(const uint64_t needed, peft::HeaderBytes(bytes, bytes.size()));
  return peft::ParseImageHeader(bytes.first(std::min<uint64_t>(needed, bytes.size())),
                                bytes.size());
}

constexpr char kTargetParameters[] = "target_parameters";

// The config without what it says of stacked experts, which the base model may tell how to take
// apart.
absl::StatusOr<std::string> WithoutStacks(const std::string& text) {
  LORRY_ASSIGN_OR_RETURN(nlohmann::json json, peft::ParseJsonObject(text, kConfigFile));
  return json.erase(kTargetParameters) > 0 ? json.dump(2) : text;
}

absl::Status CheckOneRank(const peft::Config& config) {
  if (config.rank_pattern.empty() && config.alpha_pattern.empty()) return absl::OkStatus();
  return Error(absl::StatusCode::kInvalidArgument, "CONFIG_UNSUPPORTED",
               "rank_pattern and alpha_pattern beside target_parameters cannot be carried over to "
               "single experts; train them with one r and one lora_alpha");
}

// The published config as it was written, but for target_modules, which become what the image has:
// trainers write expressions, fused names and paths there, and engines understand none of them.
absl::StatusOr<std::string> Settle(std::string text, const peft::NamePlan& plan) {
  if (plan.unstacked) {
    LORRY_ASSIGN_OR_RETURN(text, WithoutStacks(text));
  }
  LORRY_ASSIGN_OR_RETURN(const peft::Config config, peft::ParseConfig(text));
  if (plan.unstacked) LORRY_RETURN_IF_ERROR(CheckOneRank(config));
  if (config.target_modules.expression.empty() &&
      config.target_modules.names == plan.target_modules) {
    return text;
  }
  LORRY_ASSIGN_OR_RETURN(nlohmann::json json, peft::ParseJsonObject(text, kConfigFile));
  json["target_modules"] = plan.target_modules;
  return json.dump(2);
}

std::vector<peft::SourceTensor> SourcesOf(const peft::ImageHeader& header) {
  std::vector<peft::SourceTensor> sources;
  sources.reserve(header.tensors.size());
  for (const peft::Tensor& tensor : header.tensors) sources.push_back({tensor.name, tensor.shape});
  return sources;
}

std::vector<peft::TensorSpec> SpecsOf(const peft::NamePlan& plan, const peft::ImageHeader& header) {
  std::vector<peft::TensorSpec> specs;
  specs.reserve(plan.tensors.size());
  for (const peft::PlannedTensor& planned : plan.tensors) {
    const peft::Tensor& source = header.tensors[planned.source];
    std::vector<uint64_t> shape = source.shape;
    if (!shape.empty()) shape[0] = planned.row_end - planned.row_begin;
    if (planned.column_step > 1) shape[1] /= planned.column_step;
    specs.push_back({planned.name, source.dtype, std::move(shape)});
  }
  return specs;
}

void CopyTensors(const peft::NamePlan& plan, const peft::ImageHeader& header,
                 std::span<const std::byte> source_bytes, AdapterImage& image) {
  std::map<std::string_view, const peft::PlannedTensor*> by_name;
  for (const peft::PlannedTensor& planned : plan.tensors) by_name[planned.name] = &planned;
  for (const peft::Tensor& tensor : image.header().tensors) {
    const peft::PlannedTensor& planned = *by_name.at(tensor.name);
    const peft::Tensor& source = header.tensors[planned.source];
    const uint64_t rows = source.shape.empty() ? 1 : std::max<uint64_t>(source.shape[0], 1);
    const uint64_t row_bytes = (source.end - source.begin) / rows;
    const std::span<std::byte> to = image.TensorBytes(tensor);
    const std::byte* from = source_bytes.data() + source.begin + planned.row_begin * row_bytes;
    if (planned.column_step == 1) {
      std::memcpy(to.data(), from, to.size());
      continue;
    }
    const uint64_t item = row_bytes / source.shape[1], step = planned.column_step * item;
    from += planned.column * item;  // a row ends where the next begins, whole steps later
    for (uint64_t done = 0; done < to.size(); done += item, from += step)
      std::memcpy(to.data() + done, from, item);
  }
}

absl::Status CheckFiles(const std::string& directory) {
  std::error_code error;
  if (!std::filesystem::is_directory(directory, error)) {
    return Invalid(absl::StrCat(directory,
                                " is no directory; name the one that PEFT's "
                                "save_pretrained wrote"));
  }
  for (const char* name : {kConfigFile, kImageFile}) {
    if (std::filesystem::exists(std::filesystem::path(directory) / name, error)) continue;
    const bool pickled =
        std::filesystem::exists(std::filesystem::path(directory) / "adapter_model.bin", error);
    return Invalid(absl::StrCat(directory, " has no ", name,
                                pickled
                                    ? ", only a pickled adapter_model.bin; save it again with "
                                      "safe_serialization=True"
                                    : "; name the directory that PEFT's save_pretrained wrote"));
  }
  return absl::OkStatus();
}

}  // namespace

bool IsPeftDirectory(const std::string& directory) { return CheckFiles(directory).ok(); }

absl::StatusOr<AdapterImage> ReadPeftDirectory(const std::string& directory,
                                               const ReadOptions& options) {
  LORRY_RETURN_IF_ERROR(CheckFiles(directory));
  LORRY_ASSIGN_OR_RETURN(const std::optional<peft::BaseModel> base,
                         ReadBaseModel(options.base_model_config));
  LORRY_ASSIGN_OR_RETURN(const std::string text, ReadText(directory + "/" + kConfigFile));
  // What makes it no plain LoRA is told before what is amiss with its tensors.
  LORRY_ASSIGN_OR_RETURN(const std::string plain, base.has_value() ? WithoutStacks(text) : text);
  LORRY_RETURN_IF_ERROR(peft::ParseConfig(plain).status());
  LORRY_ASSIGN_OR_RETURN(const std::unique_ptr<transfer::ImageFile> file,
                         transfer::ImageFile::Open(directory + "/" + kImageFile));
  LORRY_ASSIGN_OR_RETURN(const peft::ImageHeader source, ReadHeader(file->bytes()));
  LORRY_ASSIGN_OR_RETURN(const peft::NamePlan plan,
                         peft::PlanNames(SourcesOf(source), base.has_value() ? &*base : nullptr,
                                         options.adapter_in_file));
  LORRY_ASSIGN_OR_RETURN(std::string config_json, Settle(text, plan));

  std::optional<peft::Metadata> metadata;
  if (!source.metadata.empty()) metadata = source.metadata;
  LORRY_ASSIGN_OR_RETURN(AdapterImage image, AdapterImage::LayOut(SpecsOf(plan, source), metadata,
                                                                  std::move(config_json)));
  // Before the bytes are touched: what the store would refuse is refused here, at once.
  LORRY_ASSIGN_OR_RETURN(const peft::Config config, peft::ParseConfig(image.config_json()));
  LORRY_ASSIGN_OR_RETURN(const peft::Adapter adapter,
                         peft::ValidateAdapter(image.header(), config));
  if (base.has_value()) LORRY_RETURN_IF_ERROR(peft::CheckFits(adapter, *base));
  CopyTensors(plan, source, file->bytes(), image);
  return image;
}

}  // namespace lorry::client
