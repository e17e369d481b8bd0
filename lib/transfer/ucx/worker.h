// A UCX context and worker with the thread that owns them, and endpoints upon it.
//
// Everything but Post, Start and the destructor runs on that thread only. It sleeps on the worker's
// event descriptor, always with a bounded timeout (missed wake-ups are known on UCX 1.13). Nothing
// is closed inside of UCX's own callbacks: what they lead to is deferred to the loop.
#pragma once

#include <ucp/api/ucp.h>

#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/base/clock.h"
#include "lib/base/mutex.h"

namespace lorry::transfer::ucx {

class Worker;

// One connection. Owned by the worker until it is closed and every request on it has ended.
class Endpoint {
 public:
  using Done = std::function<void(ucs_status_t)>;

  // `payload` stays valid until `done`. Above some 8 KB it goes by rendezvous: not before the peer
  // receives it.
  void Send(std::string header, std::span<const std::byte> payload, Done done);
  // Receives an announced payload; `destination` stays valid until `done`.
  void Receive(void* announced, std::span<std::byte> destination, Done done);
  // Calls `done` when everything sent so far has left.
  void Flush(Done done);
  // Ends everything that is open here, then calls `closed` from the loop: no byte of any buffer
  // given to Send or Receive is touched any more. Call once.
  void Close(std::function<void()> closed);

  ucp_ep_h handle() const { return ep_; }
  int outstanding() const { return outstanding_; }

 private:
  friend class Worker;
  struct Operation;
  Endpoint(Worker& worker, std::function<void(ucs_status_t)> on_error)
      : worker_(worker), on_error_(std::move(on_error)) {}
  void Started(ucs_status_ptr_t request, Operation* operation);
  void MaybeEnded();
  static void HandleSent(void* request, ucs_status_t status, void* operation);
  static void HandleReceived(void* request, ucs_status_t status, size_t length, void* operation);
  static void HandleClosed(void* request, ucs_status_t status, void* endpoint);
  static void HandleError(void* endpoint, ucp_ep_h ep, ucs_status_t status);

  Worker& worker_;
  ucp_ep_h ep_ = nullptr;
  std::function<void(ucs_status_t)> on_error_;
  std::function<void()> closed_;
  int outstanding_ = 0;
  bool closing_ = false;
  bool closed_by_ucx_ = false;
};

// A message that just came. `eager` is valid during the call only; `announced`, where set, is a
// payload of `length` bytes that waits at its sender until Receive or Worker::Refuse.
struct Incoming {
  ucp_ep_h endpoint = nullptr;
  std::string_view header;
  std::span<const std::byte> eager;
  void* announced = nullptr;
  uint64_t length = 0;
};

class Worker {
 public:
  struct Hooks {
    // Returns true to keep `announced`.
    std::function<bool(const Incoming&)> on_message;
    // Every kTickMs while there are endpoints.
    std::function<void(Tick now)> on_tick;
    // A peer wants to connect (servers only): Accept or Reject it, once.
    std::function<void(ucp_conn_request_h)> on_connect;
  };
  static constexpr Tick kTickMs = 20;

  static absl::StatusOr<std::unique_ptr<Worker>> Start(Hooks hooks);
  ~Worker();  // after every endpoint was closed

  void Post(std::function<void()> task) LORRY_EXCLUDES(mutex_);
  // Posts and waits; not from the worker's thread.
  void PostAndWait(std::function<void()> task);

  // After the current round of progress.
  void Defer(std::function<void()> task) { deferred_.push_back(std::move(task)); }
  Tick Now() const { return clock_.Now(); }

  absl::StatusOr<int> Listen(const std::string& host, int port);  // the port it got
  void StopListening();
  absl::StatusOr<Endpoint*> Connect(const std::string& host, int port,
                                    std::function<void(ucs_status_t)> on_error);
  absl::StatusOr<Endpoint*> Accept(ucp_conn_request_h request,
                                   std::function<void(ucs_status_t)> on_error);
  void Reject(ucp_conn_request_h request);
  void Refuse(void* announced) { ucp_am_data_release(worker_, announced); }

 private:
  friend class Endpoint;
  Worker(ucp_context_h context, ucp_worker_h worker, int event_fd, Hooks hooks);
  void Run();
  void RunTasks();
  void Sleep();
  absl::StatusOr<Endpoint*> Create(ucp_ep_params_t params,
                                   std::function<void(ucs_status_t)> on_error);
  static ucs_status_t HandleMessage(void* worker, const void* header, size_t header_length,
                                    void* data, size_t length, const ucp_am_recv_param_t* param);
  static void HandleConnect(ucp_conn_request_h request, void* worker);

  const ucp_context_h context_;
  const ucp_worker_h worker_;
  const int event_fd_;
  const Hooks hooks_;
  const SteadyClock clock_;
  ucp_listener_h listener_ = nullptr;
  std::unordered_map<Endpoint*, std::unique_ptr<Endpoint>> endpoints_;
  std::vector<std::function<void()>> deferred_;
  Tick ticked_at_ = 0;

  Mutex mutex_;
  std::deque<std::function<void()>> posted_ LORRY_GUARDED_BY(mutex_);
  bool stopping_ LORRY_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: starts when everything else is there
};

}  // namespace lorry::transfer::ucx
