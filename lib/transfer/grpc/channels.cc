#include "lib/transfer/grpc/channels.h"

#include <grpcpp/grpcpp.h>

#include <utility>

#include "lib/rpc/callback_queue.h"
#include "lib/rpc/fresh_channel.h"

namespace lorry::transfer {
namespace {

// Channels kept open; beyond that one is dropped. Proxies dial a store and a few relays.
constexpr size_t kChannelsMax = 64;

std::shared_ptr<grpc::Channel> DialInClear(const std::string& host_port) {
  return grpc::CreateChannel(host_port, grpc::InsecureChannelCredentials());
}

}  // namespace

Channels::Channels(Dial dial) : dial_(dial ? std::move(dial) : DialInClear) {
  rpc::HoldCallbackQueue();
}

std::shared_ptr<grpc::Channel> Channels::To(const std::string& host_port) {
  MutexLock lock(mutex_);
  const auto found = channels_.find(host_port);
  if (found != channels_.end()) return found->second->Get();
  auto channel = dial_(host_port);
  if (channel == nullptr) return nullptr;
  if (channels_.size() >= kChannelsMax) channels_.erase(channels_.begin());
  channels_[host_port] = std::make_shared<rpc::FreshChannel>(
      channel, [dial = dial_, host_port] { return dial(host_port); });
  return channel;
}

}  // namespace lorry::transfer
