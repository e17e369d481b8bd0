#include "services/engine_proxy/bindings/foreign_directory.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/error.h"
#include "lib/base/file_state.h"
#include "lib/peft/json.h"

namespace lorry::proxy {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kConfigFile = "adapter_config.json";
constexpr std::string_view kImageFile = "adapter_model.safetensors";
absl::Status Invalid(std::string message,
                     absl::StatusCode code = absl::StatusCode::kInvalidArgument) {
  return Error(code, "DIRECTORY_INVALID", std::move(message));
}

absl::Status Outside(const std::string& path) {
  return Error(absl::StatusCode::kPermissionDenied, "PATH_OUTSIDE_ROOTS",
               absl::StrCat(path,
                            " is not beneath a directory that this proxy may read adapters from; "
                            "write it there, or start the proxy with --bindings-root naming a "
                            "directory above it"));
}

absl::Status Changed(const std::string& path) {
  return Error(absl::StatusCode::kAborted, "DIRECTORY_CHANGED",
               absl::StrCat(path,
                            " was written to while it was read; load it once the trainer has "
                            "closed its files"));
}

// The C library has no wrapper.
int OpenBeneath(int root, const std::string& relative) {
  struct open_how how = {};
  // A pipe of that name keeps nobody waiting.
  how.flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS;
  return static_cast<int>(::syscall(SYS_openat2, root, relative.c_str(), &how, sizeof(how)));
}

class ForeignFile {
 public:
  static absl::StatusOr<ForeignFile> Open(const BindingRoots::Beneath& directory,
                                          const std::string& path, std::string_view name) {
    const std::string relative = absl::StrCat(directory.relative, "/", std::string(name));
    const std::string full = absl::StrCat(path, "/", std::string(name));
    Descriptor fd(OpenBeneath(directory.root, relative));
    if (fd.get() < 0) {
      if (errno == EXDEV || errno == ELOOP) return Outside(full);
      const bool is_missing = errno == ENOENT || errno == ENOTDIR;
      return Invalid(is_missing
                         ? absl::StrCat("there is no ", full,
                                        "; name the directory that PEFT's save_pretrained wrote")
                         : absl::StrCat(full, " cannot be read: ", std::strerror(errno)),
                     is_missing ? absl::StatusCode::kNotFound : absl::StatusCode::kInvalidArgument);
    }
    ForeignFile file(directory.root, relative, full, std::move(fd));
    const std::optional<FileState> state = FileStateOf(file.fd_.get());
    if (!state.has_value()) return Invalid(absl::StrCat(full, " is not a file"));
    file.state_ = *state;
    return file;
  }

  uint64_t bytes() const { return static_cast<uint64_t>(state_.bytes); }
  const std::string& path() const { return full_; }

  absl::Status ReadInto(std::span<std::byte> to) const {
    const ssize_t read = ReadFully(fd_.get(), to);
    if (read < 0) return Invalid(absl::StrCat(full_, " cannot be read: ", std::strerror(errno)));
    return static_cast<size_t>(read) < to.size() ? Changed(full_) : absl::OkStatus();
  }

  // That the file is what it was when it was opened, and still has its name.
  absl::Status CheckUnchanged() const {
    const Descriptor again(OpenBeneath(root_, relative_));
    // Where it is the same file, it says what the descriptor that was read would say.
    return FileStateOf(again.get()) == state_ ? absl::OkStatus() : Changed(full_);
  }

 private:
  ForeignFile(int root, std::string relative, std::string full, Descriptor fd)
      : root_(root), relative_(std::move(relative)), full_(std::move(full)), fd_(std::move(fd)) {}

  int root_;
  std::string relative_, full_;
  Descriptor fd_;
  FileState state_;
};

absl::StatusOr<std::string> ReadConfig(const ForeignFile& file) {
  if (file.bytes() > peft::kConfigBytesMax) {
    return Error(absl::StatusCode::kInvalidArgument, "DIRECTORY_TOO_LARGE",
                 absl::StrCat(file.path(), " has ", file.bytes(), " bytes, more than ",
                              peft::kConfigBytesMax, "; it is no adapter's config"));
  }
  std::string text(file.bytes(), '\0');
  LORRY_RETURN_IF_ERROR(file.ReadInto(std::as_writable_bytes(std::span(text))));
  return text;
}

}  // namespace

absl::StatusOr<BindingRoots> BindingRoots::Open(const std::vector<std::string>& directories) {
  BindingRoots roots;
  for (std::string given : directories) {
    while (given.size() > 1 && given.ends_with('/')) given.pop_back();
    std::error_code error;
    const std::string real = fs::canonical(given, error).string();
    const int fd = given.starts_with('/') && !error
                       ? ::open(real.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC)
                       : -1;
    if (fd < 0) {
      return Error(absl::StatusCode::kInvalidArgument, "",
                   absl::StrCat("--bindings-root=", given,
                                " is no directory that can be opened; give the absolute path of "
                                "one that exists"));
    }
    roots.roots_.push_back({{given, real}, fd});
  }
  return roots;
}

BindingRoots::~BindingRoots() {
  for (const Root& root : roots_) ::close(root.fd);
}

absl::StatusOr<BindingRoots::Beneath> BindingRoots::Find(const std::string& path) const {
  if (roots_.empty()) {
    return Error(absl::StatusCode::kPermissionDenied, "BINDINGS_OFF",
                 "this proxy reads adapters from no directory; start it with --bindings-root "
                 "naming the one that the trainer writes to, or publish versions with lorry");
  }
  if (path.find('\0') != std::string::npos) return Outside("a path with a NUL");
  for (const Root& root : roots_) {
    for (const std::string& name : root.names) {
      if (path == name) return Beneath{root.fd, "."};
      const std::string prefix = name == "/" ? name : name + "/";
      if (!path.starts_with(prefix)) continue;
      std::string relative = path.substr(prefix.size());
      relative.erase(0, relative.find_first_not_of('/'));
      return Beneath{root.fd, relative.empty() ? "." : relative};
    }
  }
  return Outside(path);
}

absl::StatusOr<ForeignAdapter> ReadForeignDirectory(const BindingRoots& roots,
                                                    const std::string& path, uint64_t bytes_max,
                                                    const std::function<void()>& before_check) {
  LORRY_ASSIGN_OR_RETURN(const BindingRoots::Beneath directory, roots.Find(path));
  LORRY_ASSIGN_OR_RETURN(const ForeignFile config, ForeignFile::Open(directory, path, kConfigFile));
  LORRY_ASSIGN_OR_RETURN(const ForeignFile image, ForeignFile::Open(directory, path, kImageFile));
  ForeignAdapter read;
  read.image_bytes = image.bytes();
  if (read.image_bytes > bytes_max) {
    return Error(absl::StatusCode::kResourceExhausted, "DIRECTORY_TOO_LARGE",
                 absl::StrCat(image.path(), " has ", read.image_bytes, " bytes, more than ",
                              bytes_max, "; --bindings-max-bytes allows more"));
  }
  LORRY_ASSIGN_OR_RETURN(read.memory,
                         transfer::Arena::Create(std::max<uint64_t>(read.image_bytes, 1)));
  LORRY_ASSIGN_OR_RETURN(read.config_json, ReadConfig(config));
  LORRY_RETURN_IF_ERROR(image.ReadInto(read.memory->bytes().first(read.image_bytes)));
  if (before_check) before_check();
  LORRY_RETURN_IF_ERROR(config.CheckUnchanged());
  LORRY_RETURN_IF_ERROR(image.CheckUnchanged());
  return read;
}

}  // namespace lorry::proxy
