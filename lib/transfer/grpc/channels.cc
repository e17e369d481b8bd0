#include "lib/transfer/grpc/channels.h"

#include <grpcpp/grpcpp.h>

#include <utility>

#include "lib/rpc/callback_queue.h"

namespace lorry::transfer {
namespace {

// Channels kept open; beyond that one is dropped. Proxies dial a store and a few relays.
constexpr size_t kChannelsMax = 64;

}  // namespace

Channels::Channels(Dial dial) : dial_(std::move(dial)) { rpc::HoldCallbackQueue(); }

std::shared_ptr<grpc::Channel> Channels::To(const std::string& host_port) {
  MutexLock lock(mutex_);
  const auto found = channels_.find(host_port);
  if (found != channels_.end()) return found->second;
  auto channel =
      dial_ ? dial_(host_port) : grpc::CreateChannel(host_port, grpc::InsecureChannelCredentials());
  if (channel == nullptr) return nullptr;
  if (channels_.size() >= kChannelsMax) channels_.erase(channels_.begin());
  return channels_[host_port] = std::move(channel);
}

}  // namespace lorry::transfer
