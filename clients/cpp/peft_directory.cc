#include "clients/cpp/peft_directory.h"

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "lib/base/error.h"
#include "lib/peft/canonical_image.h"
#include "lib/peft/json.h"
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
  LORRY_ASSIGN_OR_RETURN(const std::unique_ptr<transfer::ImageFile> file,
                         transfer::ImageFile::Open(directory + "/" + kImageFile));
  // Before the bytes are touched: what the store would refuse is refused here, at once.
  LORRY_ASSIGN_OR_RETURN(
      const peft::CanonicalImage planned,
      peft::PlanCanonicalImage(file->bytes(), text, base.has_value() ? &*base : nullptr,
                               options.adapter_in_file));
  LORRY_ASSIGN_OR_RETURN(AdapterImage image, AdapterImage::Of(planned.layout, planned.config_json));
  peft::WriteCanonicalImage(planned, file->bytes(), image.writable());
  return image;
}

}  // namespace lorry::client
