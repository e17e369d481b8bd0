#include "lib/rpc/fresh_channel.h"

#include <algorithm>
#include <utility>

#include "lib/base/error.h"

namespace lorry::rpc {

const Clock& FreshChannel::TheClock() {
  static const SteadyClock clock;
  return clock;
}

absl::StatusOr<std::shared_ptr<FreshChannel>> FreshChannel::Open(const ChannelOptions& options) {
  LORRY_ASSIGN_OR_RETURN(std::shared_ptr<grpc::Channel> first, MakeChannel(options));
  const auto another = [options] { return MakeChannel(options).value_or(nullptr); };
  return std::make_shared<FreshChannel>(std::move(first), another);
}

FreshChannel::FreshChannel(std::shared_ptr<grpc::Channel> first, Make another, const Clock& clock)
    : another_(std::move(another)),
      clock_(clock),
      channel_(std::move(first)),
      made_at_(clock.Now()) {}

std::shared_ptr<grpc::Channel> FreshChannel::Await(std::chrono::milliseconds limit) {
  const auto until = std::chrono::system_clock::now() + limit;
  while (true) {
    const auto look =
        std::min(until, std::chrono::system_clock::now() + std::chrono::milliseconds(kLifeMs));
    std::shared_ptr<grpc::Channel> channel = Get();
    if (channel->WaitForConnected(look) || look == until) return channel;
  }
}

std::shared_ptr<grpc::Channel> FreshChannel::Get() {
  MutexLock lock(mutex_);
  const Tick now = clock_.Now();
  if (now - made_at_ < kLifeMs || channel_->GetState(false) != GRPC_CHANNEL_TRANSIENT_FAILURE)
    return channel_;
  made_at_ = now;
  if (std::shared_ptr<grpc::Channel> made = another_(); made != nullptr) channel_ = std::move(made);
  return channel_;
}

}  // namespace lorry::rpc
