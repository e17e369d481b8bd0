#include "clients/cpp/peft_directory.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "lib/base/error.h"
#include "lib/base/file_state.h"
#include "lib/peft/canonical_image.h"
#include "lib/peft/json.h"
#include "lib/transfer/arena.h"

namespace lorry::client {
namespace {

absl::Status Invalid(const std::string& message) {
  return Error(absl::StatusCode::kInvalidArgument, "DIRECTORY_INVALID", message);
}

absl::Status Unreadable(const std::string& path, int why) {
  return Invalid(absl::StrCat(path, " cannot be read: ", std::strerror(why)));
}

// Configs are kilobytes; lib/peft refuses longer ones, so no more than that is ever read.
absl::StatusOr<std::string> ReadText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return Unreadable(path, errno);
  std::string text(peft::kConfigBytesMax + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  return text;
}

// A file of the directory, which a trainer may be writing the next step over.
class OpenFile {
 public:
  static absl::StatusOr<OpenFile> Open(const std::string& path) {
    OpenFile file(path);
    if (file.fd_.get() < 0) return Unreadable(path, errno);
    const std::optional<FileState> state = FileStateOf(file.fd_.get());
    if (!state.has_value()) return Invalid(absl::StrCat(path, " is no file"));
    file.state_ = *state;
    return file;
  }

  uint64_t bytes() const { return static_cast<uint64_t>(state_.bytes); }

  absl::Status ReadInto(std::span<std::byte> to) const {
    const ssize_t read = ReadFully(fd_.get(), to);
    if (read < 0) return Unreadable(path_, errno);
    return static_cast<size_t>(read) < to.size() ? Changed() : absl::OkStatus();
  }

  // That the name still stands for this file, and that nobody has written to it since it was opened.
  absl::Status CheckUnchanged() const {
    return FileStateOf(OpenFile(path_).fd_.get()) == state_ ? absl::OkStatus() : Changed();
  }

 private:
  // A pipe of that name keeps nobody waiting.
  explicit OpenFile(const std::string& path)
      : path_(path), fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {}

  absl::Status Changed() const {
    return Error(absl::StatusCode::kAborted, "DIRECTORY_CHANGED",
                 absl::StrCat(path_,
                              " was written to while it was read; publish it once the trainer has "
                              "closed its files"));
  }

  std::string path_;
  Descriptor fd_;
  FileState state_;
};

// As much as its header has.
absl::StatusOr<std::vector<std::byte>> ReadFront(const OpenFile& weights) {
  std::vector<std::byte> front(std::min<uint64_t>(weights.bytes(), sizeof(uint64_t)));
  LORRY_RETURN_IF_ERROR(weights.ReadInto(front));
  LORRY_ASSIGN_OR_RETURN(const uint64_t needed, peft::HeaderBytes(front, weights.bytes()));
  const size_t read = front.size();
  front.resize(std::clamp<uint64_t>(needed, read, weights.bytes()));
  LORRY_RETURN_IF_ERROR(weights.ReadInto(std::span(front).subspan(read)));
  return front;
}

absl::StatusOr<std::optional<peft::BaseModel>> ReadBaseModel(const std::string& path) {
  if (path.empty()) return std::optional<peft::BaseModel>();
  LORRY_ASSIGN_OR_RETURN(const std::string text, ReadText(path));
  LORRY_ASSIGN_OR_RETURN(peft::BaseModel model, peft::ParseBaseModel(text));
  return model;
}

absl::Status CheckFiles(const std::string& directory) {
  std::error_code error;
  const bool is_directory = std::filesystem::is_directory(directory, error);
  if (error == std::errc::permission_denied) return Unreadable(directory, error.value());
  if (!is_directory) {
    return Invalid(absl::StrCat(directory,
                                " is no directory; name the one that PEFT's "
                                "save_pretrained wrote"));
  }
  for (const char* name : {kConfigFile, kImageFile}) {
    const std::string path = (std::filesystem::path(directory) / name).string();
    if (::euidaccess(path.c_str(), R_OK) == 0) continue;
    if (errno != ENOENT) return Unreadable(path, errno);
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

bool IsPeftDirectory(const std::string& directory) {
  std::error_code ignored;
  const std::filesystem::path path(directory);
  return std::filesystem::exists(path / kConfigFile, ignored) &&
         std::filesystem::exists(path / kImageFile, ignored);
}

absl::StatusOr<AdapterImage> ReadPeftDirectory(const std::string& directory,
                                               const ReadOptions& options,
                                               const std::function<void()>& before_check) {
  LORRY_RETURN_IF_ERROR(CheckFiles(directory));
  LORRY_ASSIGN_OR_RETURN(const std::optional<peft::BaseModel> base,
                         ReadBaseModel(options.base_model_config));
  LORRY_ASSIGN_OR_RETURN(const OpenFile config, OpenFile::Open(directory + "/" + kConfigFile));
  LORRY_ASSIGN_OR_RETURN(const OpenFile weights, OpenFile::Open(directory + "/" + kImageFile));
  std::string text(std::min<uint64_t>(config.bytes(), peft::kConfigBytesMax + 1), '\0');
  LORRY_RETURN_IF_ERROR(config.ReadInto(std::as_writable_bytes(std::span(text))));
  LORRY_ASSIGN_OR_RETURN(const std::vector<std::byte> front, ReadFront(weights));
  // What the store would refuse is refused here, before the tensors are read, of which there may be
  // any number.
  LORRY_ASSIGN_OR_RETURN(
      const peft::CanonicalImage planned,
      peft::PlanCanonicalImage(front, weights.bytes(), text, base.has_value() ? &*base : nullptr,
                               options.adapter_in_file));
  LORRY_ASSIGN_OR_RETURN(const std::unique_ptr<transfer::Arena> memory,
                         transfer::Arena::Create(std::max<uint64_t>(weights.bytes(), 1)));
  const std::span<std::byte> file = memory->bytes().first(weights.bytes());
  std::ranges::copy(front, file.begin());
  LORRY_RETURN_IF_ERROR(weights.ReadInto(file.subspan(front.size())));
  if (before_check) before_check();
  LORRY_RETURN_IF_ERROR(config.CheckUnchanged());
  LORRY_RETURN_IF_ERROR(weights.CheckUnchanged());
  LORRY_ASSIGN_OR_RETURN(AdapterImage image, AdapterImage::Of(planned.layout, planned.config_json));
  peft::WriteCanonicalImage(planned, file, image.writable());
  return image;
}

}  // namespace lorry::client
