#include "clients/cpp/image_mover.h"

#include <atomic>
#include <utility>

#include "lib/transfer/ucx/transports.h"

namespace lorry::client {
namespace {

uint64_t Bytes(const std::vector<transfer::Range>& ranges, uint64_t whole) {
  if (ranges.empty()) return whole;
  uint64_t sum = 0;
  for (const transfer::Range& range : ranges) sum += range.length;
  return sum;
}

transfer::OnRange Counting(const Progress& progress, uint64_t total, uint64_t moving) {
  if (!progress) return [](const transfer::Range&, std::span<const transfer::Checksum>) {};
  auto done = std::make_shared<std::atomic<uint64_t>>(total - moving);
  progress(*done, total);
  return
      [progress, total, done](const transfer::Range& range, std::span<const transfer::Checksum>) {
        progress(*done += range.length, total);
      };
}

}  // namespace

transfer::TransportSet& ImageMover::Transports() {
  MutexLock lock(mutex_);
  if (transports_ != nullptr) return *transports_;
  const auto dial =
      [options = options_.channel](const std::string& target) -> std::shared_ptr<grpc::Channel> {
    rpc::ChannelOptions dialled = options;
    dialled.target = target;
    dialled.own_connection = true;
    auto channel = rpc::MakeChannel(dialled);
    return channel.ok() ? *std::move(channel) : nullptr;
  };
  // Without UCX on this machine gRPC carries everything, at a fraction of the rate.
  transports_ = transfer::CreateTransports({.shared_memory = options_.ucx},
                                           std::make_shared<transfer::Channels>(dial));
  return *transports_;
}

transfer::Outcome ImageMover::Push(std::vector<std::string> addresses,
                                   transfer::PushRequest request, const Progress& progress) {
  const uint64_t total = request.source.size();
  auto on_range = Counting(progress, total, Bytes(request.ranges, total));
  return transfer::Await([&](transfer::OnDone done) {
    Transports().Push(std::move(addresses), std::move(request), std::move(on_range),
                      std::move(done));
  });
}

transfer::Outcome ImageMover::Fetch(const std::vector<std::string>& addresses,
                                    transfer::FetchRequest request, const Progress& progress) {
  std::vector<transfer::Source> sources;
  for (const std::string& address : addresses) sources.push_back({address, request.ticket});
  const uint64_t total = request.destination.size();
  auto on_range = Counting(progress, total, Bytes(request.ranges, total));
  return transfer::Await([&](transfer::OnDone done) {
    Transports().Fetch(sources, std::move(request), std::move(on_range), std::move(done));
  });
}

}  // namespace lorry::client
