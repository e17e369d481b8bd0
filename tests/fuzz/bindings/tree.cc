#include "tests/fuzz/bindings/tree.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "lib/base/check.h"

namespace lorry::proxy::fuzz {
namespace {

namespace fs = std::filesystem;

// Longer than any path that a kernel takes.
constexpr size_t kPayloadBytesMax = 8192;
constexpr uint64_t kTensorBytesMax = 64u << 10;
// As floating-point numbers of any width: small, and neither zero nor infinite.
constexpr char kTensorByte = '\x3c';

// The directory that `relative` lies in, reached through no link.
class Parent {
 public:
  Parent(int fd, std::string_view relative) {
    const size_t slash = relative.rfind('/');
    if (slash == relative.npos || slash + 1 == relative.size()) return;
    const std::string folder(relative.substr(0, slash));
    name_ = relative.substr(slash + 1);
    struct open_how how = {};
    how.flags = O_PATH | O_DIRECTORY | O_CLOEXEC;
    how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS;
    fd_ = static_cast<int>(::syscall(SYS_openat2, fd, folder.c_str(), &how, sizeof(how)));
  }
  ~Parent() {
    if (fd_ >= 0) ::close(fd_);
  }
  Parent(const Parent&) = delete;
  Parent& operator=(const Parent&) = delete;
  int fd() const { return fd_; }  // -1: there is none
  const char* name() const { return name_.c_str(); }

 private:
  int fd_ = -1;
  std::string name_;
};

uint64_t Number(std::string_view text) {
  uint64_t number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

// A safetensors file with this header, and tensors of as many bytes as it says.
std::string Image(const std::string& header) {
  uint64_t bytes = 0;
  const auto json = nlohmann::json::parse(header, nullptr, /*allow_exceptions=*/false);
  if (json.is_object()) {
    for (const auto& tensor : json) {
      if (!tensor.is_object() || !tensor.contains("data_offsets")) continue;
      const auto& offsets = tensor["data_offsets"];
      if (!offsets.is_array() || offsets.size() != 2 || !offsets[1].is_number_unsigned()) continue;
      bytes = std::max(bytes, offsets[1].get<uint64_t>());
    }
  }
  std::string image(8, '\0');
  for (size_t i = 0; i < 8; ++i) image[i] = static_cast<char>(uint64_t{header.size()} >> (8 * i));
  return image + header + std::string(std::min(bytes, kTensorBytesMax), kTensorByte);
}

// Over what is there, as trainers do that write one directory again and again.
void WriteFile(const Parent& at, const std::string& content, uint64_t bytes) {
  const int fd = ::openat(at.fd(), at.name(),
                          O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
  if (fd < 0) return;
  (void)!::write(fd, content.data(), content.size());
  if (bytes > 0) (void)!::ftruncate(fd, static_cast<off_t>(bytes));
  ::close(fd);
}

}  // namespace

Tree::Tree() {
  fd_ = ::open(folder_.path().c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
  LORRY_CHECK(fd_ >= 0);
  Clear();
}

Tree::~Tree() { ::close(fd_); }

void Tree::Clear() {
  for (const char* folder : {"root", "elsewhere"}) {
    fs::create_directory(*this / folder);
    for (const auto& entry : fs::directory_iterator(*this / folder)) fs::remove_all(entry);
  }
  Do({'D', 0, "elsewhere/a"});
  Do({'F', 0, "elsewhere/a/adapter_config.json {}"});
  Do({'F', 0, "elsewhere/a/adapter_model.safetensors secret"});
}

void Tree::Do(const lorry::fuzz::Command& command) {
  const std::string payload = lorry::fuzz::Expand(command.payload, kPayloadBytesMax);
  const size_t space = std::min(payload.find(' '), payload.size());
  const std::string text = payload.substr(std::min(space + 1, payload.size()));
  const Parent at(fd_, std::string_view(payload).substr(0, space));
  if (at.fd() < 0) return;
  switch (command.op) {
    case 'F':
      return WriteFile(at, text, 0);
    case 'I':
      return WriteFile(at, Image(text), 0);
    case 'G':  // a hole: as large as it says, and no room taken
      return WriteFile(at, "", std::min<uint64_t>(Number(text), uint64_t{1} << 40));
    case 'D':
      (void)::mkdirat(at.fd(), at.name(), 0700);
      return;
    case 'P':
      (void)::mkfifoat(at.fd(), at.name(), 0600);
      return;
    case 'L':
      (void)::symlinkat((command.arg == 0 ? text : *this / text).c_str(), at.fd(), at.name());
      return;
    case 'X':
      (void)::unlinkat(at.fd(), at.name(), 0);
      return;
    case 'M': {
      const Parent to(fd_, text);
      if (to.fd() >= 0) (void)::renameat(at.fd(), at.name(), to.fd(), to.name());
      return;
    }
    default:
      return;
  }
}

}  // namespace lorry::proxy::fuzz
