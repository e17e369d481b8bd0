// One session's end in UCX: an endpoint upon a UCX worker of its own.
//
// A worker for each session and not one for all: a sender that dies while it writes into a
// receiver's shared-memory FIFO leaves an entry that is never finished, and the FIFO stands still
// for ever. So a FIFO has one sender, and goes with it. It also makes the end of a session simple:
// UCX touches memory only while its worker is progressed, so a worker that is gone touches none.
//
// The loop's thread only.
#pragma once

#include <ucp/api/ucp.h>

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>

#include "absl/status/status.h"
#include "lib/base/clock.h"

namespace lorry::transfer::ucx {

class Loop;

// A message that just came. `eager` is valid during the call only; `announced`, where set, is a
// payload of `length` bytes that waits at its sender until Receive or Refuse.
struct Incoming {
  std::string_view header;
  std::span<const std::byte> eager;
  void* announced = nullptr;
  uint64_t length = 0;
};

// Owned by its loop until it is closed.
class Endpoint {
 public:
  using Done = std::function<void(ucs_status_t)>;
  struct Hooks {
    std::function<bool(const Incoming&)> on_message;  // returns true to keep `announced`
    std::function<void(ucs_status_t)> on_error;       // the peer is gone; Close is to follow
  };
  // How long UCX may take to end what was open before its worker is taken away nevertheless.
  static constexpr Tick kCloseMs = 1'000;

  ~Endpoint();

  const std::string& address() const { return address_; }  // for the peer's Connect
  // `address` is believed: UCX maps and writes what it names. Only from a peer that has proved
  // itself. UNAVAILABLE when no lane reaches it. Once, before Send.
  absl::Status Connect(const std::string& address);

  // `payload` stays valid until `done`. Above some 8 KB it goes by rendezvous: not before the peer
  // receives it.
  void Send(std::string header, std::span<const std::byte> payload, Done done);
  // Receives an announced payload; `destination` stays valid until `done`.
  void Receive(void* announced, std::span<std::byte> destination, Done done);
  void Refuse(void* announced) { ucp_am_data_release(worker_, announced); }
  // Calls `done` when everything sent so far has left.
  void Flush(Done done);
  // Ends everything that is open here, then calls `closed` from the loop: no byte of any buffer
  // given to Send or Receive is touched any more, and this object is gone. Call once.
  void Close(std::function<void()> closed);

 private:
  friend class Loop;
  struct Operation;
  Endpoint(Loop& loop, Hooks hooks) : loop_(loop), hooks_(std::move(hooks)) {}
  absl::Status Init(ucp_context_h context);
  int event_fd() const { return event_fd_; }
  unsigned Progress() { return ucp_worker_progress(worker_); }
  bool Arm() { return ucp_worker_arm(worker_) == UCS_OK; }
  // False once it has been closing for too long.
  bool InTime(Tick now) const { return !closing_ || now - closing_since_ < kCloseMs; }
  void Started(ucs_status_ptr_t request, Operation* operation);
  void Finished(Operation* operation, ucs_status_t status);
  void MaybeEnded();
  void End();
  static void HandleSent(void* request, ucs_status_t status, void* operation);
  static void HandleReceived(void* request, ucs_status_t status, size_t length, void* operation);
  static void HandleClosed(void* request, ucs_status_t status, void* endpoint);
  static void HandleError(void* endpoint, ucp_ep_h ep, ucs_status_t status);
  static ucs_status_t HandleMessage(void* endpoint, const void* header, size_t header_length,
                                    void* data, size_t length, const ucp_am_recv_param_t* param);

  Loop& loop_;
  const Hooks hooks_;
  ucp_worker_h worker_ = nullptr;
  ucp_ep_h ep_ = nullptr;
  int event_fd_ = -1;
  std::string address_;
  std::function<void()> closed_;
  std::unordered_set<Operation*> outstanding_;
  Tick closing_since_ = 0;
  bool closing_ = false;
  bool closed_by_ucx_ = false;
  bool ended_ = false;
};

// UNAVAILABLE "UCX cannot ...".
absl::Status FromUcx(ucs_status_t status, std::string_view verb);

}  // namespace lorry::transfer::ucx
