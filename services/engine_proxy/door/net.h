// The asio types of the door, and sockets whose time limits a sweeper enforces.
//
// Everything here belongs to one shard: one io_context, run by one thread, which alone touches it.
// A timer per operation would cost a heap operation per read and write; one sweep every 250 ms
// ends what is over its limit instead. It also ends reads that wait for a peer that has closed.
#pragma once

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/basic_waitable_timer.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/deferred.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <chrono>
#include <cstdint>
#include <limits>
#include <span>
#include <tuple>
#include <unordered_set>
#include <utility>

#include "services/engine_proxy/door/read_room.h"

namespace lorry::door {

namespace asio = boost::asio;
using ErrorCode = boost::system::error_code;
using Tcp = asio::ip::tcp;
using Executor = asio::io_context::executor_type;  // concrete: the polymorphic one costs an
                                                   // indirection an operation
using Socket = asio::basic_stream_socket<Tcp, Executor>;
using SteadyTime = std::chrono::steady_clock;
using Timer = asio::basic_waitable_timer<SteadyTime, asio::wait_traits<SteadyTime>, Executor>;
template <typename T>
using Task = asio::awaitable<T, Executor>;
// co_await f(..., kAwait) gives a tuple that begins with the error code: no exceptions. Deferred, as
// use_awaitable would make a coroutine of each wait.
inline constexpr asio::as_tuple_t<asio::deferred_t> kAwait{};
using Transferred = std::tuple<ErrorCode, size_t>;

inline int64_t NowMs() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(SteadyTime::now().time_since_epoch())
      .count();
}

class TimedSocket;

class Sweeper {
 public:
  void Sweep();

 private:
  friend class TimedSocket;
  std::unordered_set<TimedSocket*> sockets_;
};

class TimedSocket {
 public:
  TimedSocket(Sweeper& sweeper, Socket socket) : sweeper_(sweeper), socket_(std::move(socket)) {
    sweeper_.sockets_.insert(this);
  }
  ~TimedSocket() { sweeper_.sockets_.erase(this); }
  TimedSocket(const TimedSocket&) = delete;
  TimedSocket& operator=(const TimedSocket&) = delete;

  Socket& socket() { return socket_; }
  // Operations end with an error once `ms` have passed, also those that begin later, until another
  // limit is set; 0 is for ever. The connection stays as it is: whoever waited decides what becomes
  // of it.
  void ExpireIn(int64_t ms) {
    deadline_ = ms > 0 ? NowMs() + ms : kNever;
    expired_ = false;
  }
  void NeverExpire() { deadline_ = kNever; }
  bool expired() const { return expired_; }
  // To be awaited: what comes next, until the deadline; hand what it gives to Took. One at a time.
  auto Read(asio::mutable_buffer room) {
    look_due_ = true;
    return socket_.async_read_some(ReadRoom(room), kAwait);
  }
  void Took() { look_due_ = false; }
  void Close() {
    ErrorCode ignored;
    socket_.close(ignored);
  }
  // Writes of `left` what the socket takes at once, which is nearly always all, and then leaves it
  // empty. Adds what was written to `written`.
  ErrorCode WriteNow(std::span<asio::const_buffer>* left, uint64_t* written);
  // Writes what WriteNow left. `idle_ms` is for each wait.
  Task<ErrorCode> WriteRest(std::span<asio::const_buffer> left, int64_t idle_ms, uint64_t* written);

 private:
  friend class Sweeper;
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
  Sweeper& sweeper_;
  Socket socket_;
  int64_t deadline_ = kNever;
  bool expired_ = false;
  bool look_due_ = false;  // a read has begun, and nobody has looked since whether it was the end
};

}  // namespace lorry::door
