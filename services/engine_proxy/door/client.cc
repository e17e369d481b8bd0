#include "services/engine_proxy/door/client.h"

#include <sys/socket.h>

#include <array>
#include <boost/asio/write.hpp>
#include <cerrno>
#include <utility>

namespace lorry::door {
namespace {

// What a client may still be sending while it is told that its request is refused.
constexpr size_t kLingerBytes = 256 * 1024;
constexpr size_t kLingerRead = 16 * 1024;
constexpr int64_t kLingerMs = 1'000;

}  // namespace

Client::Client(Shard& shard, Socket socket)
    : shard_(shard), link_(shard.sweeper, std::move(socket)) {
  shard_.clients.insert(this);
  ErrorCode ignored;
  link_.socket().set_option(Tcp::no_delay(true), ignored);
}

Client::~Client() {
  shard_.clients.erase(this);
  shard_.shared.connections.fetch_sub(1);
}

Task<bool> Client::ReadMore(size_t room) {
  auto [error, n] = co_await link_.socket().async_read_some(in_.prepare(room), kAwait);
  if (error) co_return false;
  in_.commit(n);
  co_return true;
}

Task<bool> Client::Write(std::string_view a, std::string_view b, std::string_view c) {
  if (left_) co_return false;
  const std::array<asio::const_buffer, 3> buffers = {asio::buffer(a.data(), a.size()),
                                                     asio::buffer(b.data(), b.size()),
                                                     asio::buffer(c.data(), c.size())};
  link_.ExpireIn(shard_.shared.options.limits.client_write_ms);
  auto [error, n] = co_await asio::async_write(link_.socket(), buffers, kAwait);
  link_.NeverExpire();
  written_ += n;
  if (error) Leave();
  co_return !error;
}

// Closing with unread bytes in the socket would reset the connection, and the answer might be lost
// with it.
Task<void> Client::LingeringClose() {
  ErrorCode ignored;
  link_.socket().shutdown(Socket::shutdown_send, ignored);
  link_.ExpireIn(kLingerMs);
  in_.consume(in_.size());
  for (size_t dropped = 0; dropped < kLingerBytes; dropped += in_.size()) {
    in_.consume(in_.size());
    const bool more = co_await ReadMore(kLingerRead);
    if (!more) break;
  }
}

void Client::BeginRequest() {
  serving_ = true;
  written_ = 0;
}

void Client::EndRequest() { serving_ = false; }

void Client::Watch() {
  if (waiting_ || left_) return;
  waiting_ = true;
  link_.socket().async_wait(Socket::wait_read, [self = shared_from_this()](const ErrorCode& error) {
    self->waiting_ = false;
    if (!error) self->Look();
  });
}

void Client::Look() {
  // Between two requests the session reads, and sees for itself when the client leaves.
  if (!serving_ || !link_.socket().is_open()) return;
  char byte;
  const ssize_t n = ::recv(link_.socket().native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  if (n > 0) return;  // the next request, pipelined: nothing more can be learnt until it is read
  if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) {
    Watch();
  } else {
    Leave();
  }
}

void Client::Leave() {
  if (std::exchange(left_, true)) return;
  Close();
  if (on_left_) on_left_();
}

void Client::CloseIfIdle() {
  if (!serving_ && in_.size() == 0) Close();
}

}  // namespace lorry::door
