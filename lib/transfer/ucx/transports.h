// The transports of a program that dials: which of them there are, best first.
#pragma once

#include <functional>
#include <memory>
#include <string_view>

#include "absl/status/status.h"
#include "lib/transfer/transport_set.h"
#include "lib/transfer/ucx/ucx_transport.h"

namespace lorry::transfer {

struct TransportChoice {
  bool shared_memory = true;
  UcxDevices devices = {};  // network lanes, where an operator declares any
  // Channels to relays, "[name@]host:port", where the program asks relays; null: it does not.
  std::shared_ptr<Channels> relays = nullptr;
  // Told of each of these that does not start here; gRPC goes on without it.
  std::function<void(std::string_view name, const absl::Status& why)> on_missing = {};
};

// Shared memory, declared networks, relays, gRPC.
std::unique_ptr<TransportSet> CreateTransports(const TransportChoice& choice,
                                               std::shared_ptr<Channels> channels);

}  // namespace lorry::transfer
