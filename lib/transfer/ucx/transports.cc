#include "lib/transfer/ucx/transports.h"

#include <utility>
#include <vector>

namespace lorry::transfer {

std::unique_ptr<TransportSet> CreateTransports(const TransportChoice& choice,
                                               std::shared_ptr<Channels> channels) {
  std::vector<std::unique_ptr<Transport>> transports;
  const auto add = [&](UcxLane lane) {
    auto transport = CreateUcxTransport(lane, channels, choice.devices);
    if (transport.ok()) {
      transports.push_back(*std::move(transport));
    } else if (choice.on_missing) {
      choice.on_missing(NameOf(lane), transport.status());
    }
  };
  if (choice.shared_memory) add(UcxLane::kSharedMemory);
  if (!choice.devices.empty()) add(UcxLane::kNetwork);
  if (choice.relays != nullptr) transports.push_back(CreateGrpcTransport(choice.relays, "relay"));
  transports.push_back(CreateGrpcTransport(std::move(channels)));
  return std::make_unique<TransportSet>(std::move(transports));
}

}  // namespace lorry::transfer
