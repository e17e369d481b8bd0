// The client's side of one connection: what it sends, what it is told, and that it leaves.
//
// Belongs to one shard and its thread. A client that closes, or half-closes, has left (as uvicorn
// sees it). Shared, because the wait that watches the socket may end after the session.
#pragma once

#include <boost/beast/core/flat_buffer.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "services/engine_proxy/door/shard.h"

namespace lorry::door {

class Client : public std::enable_shared_from_this<Client> {
 public:
  Client(Shard& shard, Socket socket);
  ~Client();

  // What came and was not used yet.
  beast::flat_buffer& in() { return in_; }
  // To be awaited: more of it, until the link expires; the result is for Took.
  auto ReadMore(size_t room) { return link_.Read(in_.prepare(room)); }
  // False: the connection has ended.
  bool Took(const Transferred& read);
  // False: the client has left.
  Task<bool> Write(std::string_view a, std::string_view b = {});
  // In two steps, as the second is seldom needed: what the socket takes at once is written, which
  // leaves nothing of `pieces`, or what WriteRest is for.
  bool WriteNow(std::span<asio::const_buffer>* pieces);
  Task<bool> WriteRest(std::span<asio::const_buffer> pieces);
  // Ends the connection so that what was written last can still be read.
  Task<void> LingeringClose();
  void Close() { link_.Close(); }
  // What is written from here on ends with its connection, for a client that knows no chunks: until
  // the request's end a connection that ends ends in a reset, as a FIN would make of it the whole.
  void BeginUnframed() { unframed_ = true; }
  // The reply breaks off: the end of the connection, which is to follow, has to show it.
  void BreakOff();
  TimedSocket& link() { return link_; }
  const std::string& address() const { return address_; }

  // Between these two a request is served.
  void BeginRequest();
  // The whole request is here: until it ends, a client that leaves is noticed although nobody
  // reads.
  void Watch() { watched_ = true; }
  void EndRequest();
  // At each sweep: whether a watched client has left, and from then on a wait for its leaving. A
  // request that ends before the next sweep never pays for that wait.
  void Look();

  bool left() const { return left_; }
  int64_t IdleMs() const;  // how long it may be connected without a request
  void Leave();            // as if it had left: nothing more is read or written
  void CloseIfIdle();      // drain: a connection between two requests is closed
  uint64_t written() const { return written_; }  // in the current request
  void ForgetWritten() { written_ = 0; }

 private:
  friend class LeaveHook;
  Shard& shard_;
  TimedSocket link_;
  const std::string address_;
  beast::flat_buffer in_;
  std::function<void()> on_left_;
  uint64_t written_ = 0;
  bool serving_ = false;
  bool watched_ = false;
  bool unframed_ = false;  // a reply that ends with its connection has begun, and has not ended
  bool asked_ = false;     // it has sent a request
  bool waiting_ = false;   // for the socket to become readable
  bool left_ = false;
};

// While it lives, `on_left` is called once when the client leaves. One at a time.
class LeaveHook {
 public:
  LeaveHook(Client& client, std::function<void()> on_left) : client_(client) {
    client_.on_left_ = std::move(on_left);
  }
  ~LeaveHook() { client_.on_left_ = nullptr; }
  LeaveHook(const LeaveHook&) = delete;
  LeaveHook& operator=(const LeaveHook&) = delete;

 private:
  Client& client_;
};

}  // namespace lorry::door
