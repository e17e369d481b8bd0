// A UCX context for each lane, and the thread that runs every endpoint upon them.
//
// Everything but Post, Start and the destructor runs on that thread only. It sleeps on the
// endpoints' event descriptors, always with a bounded timeout (missed wake-ups are known on UCX
// 1.13). Nothing is closed inside of UCX's own callbacks: what they lead to is deferred to the
// loop.
#pragma once

#include <ucp/api/ucp.h>

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/base/clock.h"
#include "lib/base/mutex.h"
#include "lib/transfer/ucx/endpoint.h"
#include "lib/transfer/ucx/ucx_transport.h"

namespace lorry::transfer::ucx {

class Loop {
 public:
  static constexpr Tick kTickMs = 20;

  // `on_tick`: every kTickMs or so while `busy` says that somebody waits for something.
  struct Hooks {
    std::function<bool()> busy;
    std::function<void(Tick now)> on_tick;
  };
  static absl::StatusOr<std::unique_ptr<Loop>> Start(const std::vector<UcxLane>& lanes,
                                                     const UcxDevices& devices, Hooks hooks);
  ~Loop();  // after every endpoint was closed

  void Post(std::function<void()> task) LORRY_EXCLUDES(mutex_);
  // Posts and waits; not from the loop's thread.
  void PostAndWait(std::function<void()> task);

  // After the current round of progress.
  void Defer(std::function<void()> task) { deferred_.push_back(std::move(task)); }
  Tick Now() const { return clock_.Now(); }

  bool Has(UcxLane lane) const { return contexts_.contains(lane); }
  // `lane` is one of Start's. UNAVAILABLE when UCX has no room for another, in /dev/shm for instance.
  absl::StatusOr<Endpoint*> Open(UcxLane lane, Endpoint::Hooks hooks);
  bool Has(Endpoint* endpoint) const { return endpoints_.contains(endpoint); }

 private:
  friend class Endpoint;
  using Contexts = std::map<UcxLane, ucp_context_h>;
  Loop(Contexts contexts, int epoll_fd, int wake_fd, Hooks hooks);
  void Run();
  void RunTasks();
  bool ProgressAll();
  void Sleep();
  void Remove(Endpoint* endpoint);

  const Contexts contexts_;
  const int epoll_fd_, wake_fd_;
  const Hooks hooks_;
  const SteadyClock clock_;
  std::unordered_map<Endpoint*, std::unique_ptr<Endpoint>> endpoints_;
  std::vector<std::function<void()>> deferred_;
  Tick ticked_at_ = 0;

  Mutex mutex_;
  std::deque<std::function<void()>> posted_ LORRY_GUARDED_BY(mutex_);
  bool stopping_ LORRY_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: starts when everything else is there
};

}  // namespace lorry::transfer::ucx
