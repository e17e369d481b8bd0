// Moves image bytes between this process and the store: by UCX shared memory first, by gRPC where
// that does not reach. Thread-safe; its transports start at the first use. Calls block until the
// transfer has ended.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lib/base/mutex.h"
#include "lib/rpc/channel.h"
#include "lib/transfer/transport_set.h"

namespace lorry::client {

// Bytes that are verified at their end so far, of all. On a transport's thread: must not block.
using Progress = std::function<void(uint64_t done, uint64_t total)>;

class ImageMover {
 public:
  struct Options {
    rpc::ChannelOptions channel;  // credentials for gRPC transfers; `target` is ignored
    bool ucx = true;              // shared memory, within a host
  };
  explicit ImageMover(Options options) : options_(std::move(options)) {}

  // Bounded by the request's own deadlines. `outcome.done` says what need not travel again.
  transfer::Outcome Push(std::vector<std::string> addresses, transfer::PushRequest request,
                         const Progress& progress);
  transfer::Outcome Fetch(const std::vector<std::string>& addresses, transfer::FetchRequest request,
                          const Progress& progress);

 private:
  transfer::TransportSet& Transports() LORRY_EXCLUDES(mutex_);

  const Options options_;
  Mutex mutex_;
  std::unique_ptr<transfer::TransportSet> transports_ LORRY_GUARDED_BY(mutex_);
};

}  // namespace lorry::client
