// A channel to a service by its name, made anew while it fails.
//
// gRPC asks a name server that does not know a name more and more rarely, down to once in two
// minutes, and nothing but another channel makes it ask again. In Kubernetes the name of a service
// is unknown while its pod moves. Thread-safe.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "lib/base/clock.h"
#include "lib/base/mutex.h"
#include "lib/rpc/channel.h"

namespace lorry::rpc {

class FreshChannel {
 public:
  // How old a channel that fails gets: about as often is a service dialled.
  static constexpr int64_t kLifeMs = 2'000;
  // nullptr where none can be made for a moment; the channel that there is then stays.
  using Make = std::function<std::shared_ptr<grpc::Channel>()>;

  // As MakeChannel.
  static absl::StatusOr<std::shared_ptr<FreshChannel>> Open(const ChannelOptions& options);
  // `clock` outlives this.
  FreshChannel(std::shared_ptr<grpc::Channel> first, Make another, const Clock& clock = TheClock());

  // To be asked for each call. Never nullptr.
  std::shared_ptr<grpc::Channel> Get() LORRY_EXCLUDES(mutex_);
  // The first that is connected, or the last of those that were not within `limit`.
  std::shared_ptr<grpc::Channel> Await(std::chrono::milliseconds limit);

 private:
  static const Clock& TheClock();

  const Make another_;
  const Clock& clock_;
  Mutex mutex_;
  std::shared_ptr<grpc::Channel> channel_ LORRY_GUARDED_BY(mutex_);
  Tick made_at_ LORRY_GUARDED_BY(mutex_);
};

}  // namespace lorry::rpc
