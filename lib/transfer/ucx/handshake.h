// What the two ends of a session say before UCX: who signs what, with which secret. Used by both.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "lorry/transfer/v1/ucx.pb.h"

namespace lorry::transfer::ucx {

inline constexpr std::string_view kClientSide = "client";
inline constexpr std::string_view kServerSide = "server";
inline constexpr size_t kNonceBytes = 16;
// A worker's address over shared memory has 75 bytes, over a few devices some hundreds.
inline constexpr size_t kAddressBytesMax = 4096;

struct Handshake {
  std::string secret;
  std::string client_nonce, server_nonce;

  v1::UcxAddress Signed(std::string_view side, const std::string& address) const;
  // FAILED_PRECONDITION LANE_UNAVAILABLE unless `side` signed it with our secret.
  absl::Status Check(std::string_view side, const v1::UcxAddress& address) const;
};

// FAILED_PRECONDITION LANE_UNAVAILABLE unless `version` and ours have the same first two numbers:
// UCX promises nothing about what others send.
absl::Status CheckSameUcx(std::string_view version);

}  // namespace lorry::transfer::ucx
