#include "lib/transfer/ucx/host_proof.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "lib/base/check.h"
#include "lib/transfer/byte_codec.h"

namespace lorry::transfer::ucx {
namespace {

constexpr size_t kSecretBytes = 32;
constexpr size_t kNonceBytes = 16;
constexpr int kSeals = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;

std::string RandomBytes(size_t count) {
  std::string bytes(count, '\0');
  LORRY_CHECK(RAND_bytes(reinterpret_cast<unsigned char*>(bytes.data()), static_cast<int>(count)) ==
              1);
  return bytes;
}

absl::Status Elsewhere(std::string_view why) {
  return absl::UnavailableError(absl::StrCat("the server is not of this user on this host: ",
                                             absl::string_view(why.data(), why.size())));
}

// A sealed file of this user's alone, as Create makes them. Anything else that the number may lead
// to, another process's pipe or file, is not even opened for reading.
bool IsSecret(const struct stat& info) {
  return S_ISREG(info.st_mode) && (info.st_mode & 07777) == 0600 && info.st_uid == ::geteuid() &&
         info.st_size == static_cast<off_t>(kSecretBytes);
}

}  // namespace

absl::StatusOr<std::unique_ptr<HostSecret>> HostSecret::Create() {
  const int fd = ::memfd_create("lorry-host-secret", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  std::string text = RandomBytes(kSecretBytes);
  if (fd < 0 || ::fchmod(fd, 0600) != 0 ||
      ::write(fd, text.data(), text.size()) != static_cast<ssize_t>(text.size()) ||
      ::fcntl(fd, F_ADD_SEALS, kSeals) != 0) {
    const int error = errno;
    if (fd >= 0) ::close(fd);
    return absl::UnavailableError(absl::StrCat("no memory file: ", std::strerror(error)));
  }
  return std::unique_ptr<HostSecret>(new HostSecret(fd, std::move(text)));
}

HostSecret::~HostSecret() { ::close(fd_); }

uint32_t HostSecret::pid() const { return static_cast<uint32_t>(::getpid()); }

absl::StatusOr<std::string> ReadHostSecret(uint32_t pid, uint32_t fd) {
  const std::string path = absl::StrCat("/proc/", pid, "/fd/", fd);
  const int named = ::open(path.c_str(), O_PATH | O_CLOEXEC);
  if (named < 0) return Elsewhere(std::strerror(errno));
  const absl::Cleanup close_named = [named] { ::close(named); };
  struct stat info = {};
  if (::fstat(named, &info) != 0 || !IsSecret(info)) return Elsewhere("it named another file");
  const int file = ::open(absl::StrCat("/proc/self/fd/", named).c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return Elsewhere(std::strerror(errno));
  const absl::Cleanup close_file = [file] { ::close(file); };
  if (::fcntl(file, F_GET_SEALS) != kSeals) return Elsewhere("it named another file");
  std::string text(kSecretBytes, '\0');
  if (::pread(file, text.data(), text.size(), 0) != static_cast<ssize_t>(text.size())) {
    return Elsewhere("its secret cannot be read");
  }
  return text;
}

std::string FreshNonce() { return RandomBytes(kNonceBytes); }

std::string Sign(std::string_view secret, const SignedAddress& what) {
  ByteWriter out;
  for (const std::string_view part :
       {what.side, what.client_nonce, what.server_nonce, what.address}) {
    out.Number(part.size(), 8);
    out.Bytes(part);
  }
  const std::string text = out.Take();
  std::array<unsigned char, EVP_MAX_MD_SIZE> mac;
  unsigned int length = 0;
  LORRY_CHECK(HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
                   reinterpret_cast<const unsigned char*>(text.data()), text.size(), mac.data(),
                   &length) != nullptr);
  return std::string(reinterpret_cast<const char*>(mac.data()), length);
}

bool IsSigned(std::string_view secret, const SignedAddress& what, std::string_view signature) {
  const std::string expected = Sign(secret, what);
  return expected.size() == signature.size() &&
         CRYPTO_memcmp(expected.data(), signature.data(), expected.size()) == 0;
}

}  // namespace lorry::transfer::ucx
