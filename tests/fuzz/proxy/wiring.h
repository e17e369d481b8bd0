// What both programs of this folder are wired with.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "lib/rpc/fresh_channel.h"
#include "lib/transfer/ucx/transports.h"

namespace lorry::proxy::fuzz {

template <typename T>
T Must(absl::StatusOr<T> value) {
  if (value.ok()) return *std::move(value);
  std::fprintf(stderr, "%s\n", std::string(value.status().ToString()).c_str());
  std::abort();
}

inline std::shared_ptr<rpc::FreshChannel> Dial(const std::string& target) {
  return Must(rpc::FreshChannel::Open({.target = target}));
}

// By gRPC alone: UCX would be set up anew for each input.
inline std::unique_ptr<transfer::TransportSet> Transports() {
  const auto dial = [](const std::string& target) -> std::shared_ptr<grpc::Channel> {
    const auto channel = rpc::MakeChannel({.target = target});
    return channel.ok() ? *channel : nullptr;
  };
  return transfer::CreateTransports({.shared_memory = false},
                                    std::make_shared<transfer::Channels>(dial));
}

}  // namespace lorry::proxy::fuzz
