// How two processes prove to each other that they are of one user on one host, before either
// believes the other's UCX address: an address says which memory to map and to write.
//
// The server keeps a secret in a sealed memory file that has no name, and tells the descriptor's
// number. Only the same user in the same PID namespace can open /proc/PID/fd/N, which is also how
// UCX's shared memory is opened; so whoever can sign with the secret can use the lane, and nobody
// else gets as far as an address.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace lorry::transfer::ucx {

class HostSecret {
 public:
  static absl::StatusOr<std::unique_ptr<HostSecret>> Create();
  ~HostSecret();
  HostSecret(const HostSecret&) = delete;
  HostSecret& operator=(const HostSecret&) = delete;

  uint32_t pid() const;
  uint32_t fd() const { return static_cast<uint32_t>(fd_); }
  const std::string& text() const { return text_; }

 private:
  HostSecret(int fd, std::string text) : fd_(fd), text_(std::move(text)) {}
  const int fd_;
  const std::string text_;
};

// The secret of the process that named it. UNAVAILABLE where this process may not read it, or it is
// no secret of this user: the peer is then elsewhere, or somebody else.
absl::StatusOr<std::string> ReadHostSecret(uint32_t pid, uint32_t fd);

// 16 random bytes.
std::string FreshNonce();

// What each side signs: its own address, in answer to both nonces.
struct SignedAddress {
  std::string_view side;  // "client" or "server": an answer is no proof of the other side's
  std::string_view client_nonce, server_nonce;
  std::string_view address;
};
std::string Sign(std::string_view secret, const SignedAddress& what);
// In constant time.
bool IsSigned(std::string_view secret, const SignedAddress& what, std::string_view signature);

}  // namespace lorry::transfer::ucx
