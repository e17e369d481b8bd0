#include "services/engine_proxy/door/client.h"

#include <algorithm>
#include <array>
#include <utility>

#include "services/engine_proxy/door/tcp.h"

namespace lorry::door {
namespace {

// What a client may still be sending while it is told that its request is refused: a body that is
// too large, by clients that read nothing before they have sent it all.
constexpr size_t kLingerBytes = 1u << 30;
constexpr size_t kLingerRead = 64 * 1024;
constexpr int64_t kLingerIdleMs = 1'000;
constexpr int64_t kLingerMs = 30'000;  // in all
// A client that has connected while the door drains may still send its first request.
constexpr int64_t kFirstRequestMs = 1'000;

std::string AddressOf(const Socket& socket) {
  ErrorCode error;
  const Tcp::endpoint peer = socket.remote_endpoint(error);
  return error ? "unknown" : peer.address().to_string();
}

}  // namespace

Client::Client(Shard& shard, Socket socket)
    : shard_(shard), link_(shard.sweeper, std::move(socket)), address_(AddressOf(link_.socket())) {
  shard_.clients.insert(this);
  ErrorCode ignored;
  link_.socket().set_option(Tcp::no_delay(true), ignored);
  link_.socket().non_blocking(true, ignored);
  DetectDeadPeer(link_.socket().native_handle(), shard.shared.options.limits.client_write_ms);
}

Client::~Client() {
  shard_.clients.erase(this);
  shard_.shared.connections.fetch_sub(1);
  shard_.shared.TellIfClosed();
}

bool Client::Took(const Transferred& read) {
  link_.Took();
  const auto& [error, n] = read;
  if (!error) in_.commit(n);
  return !error;
}

Task<bool> Client::Write(std::string_view a, std::string_view b) {
  std::array<asio::const_buffer, 2> pieces = {asio::buffer(a.data(), a.size()),
                                              asio::buffer(b.data(), b.size())};
  std::span<asio::const_buffer> left = pieces;
  if (!WriteNow(&left)) co_return false;
  co_return co_await WriteRest(left);
}

bool Client::WriteNow(std::span<asio::const_buffer>* pieces) {
  if (left_) return false;
  const ErrorCode error = link_.WriteNow(pieces, &written_);
  if (error) Leave();
  return !error;
}

Task<bool> Client::WriteRest(std::span<asio::const_buffer> pieces) {
  const ErrorCode error =
      co_await link_.WriteRest(pieces, shard_.shared.options.limits.client_write_ms, &written_);
  if (error) Leave();
  co_return !error;
}

// Closing with unread bytes in the socket would reset the connection, and the answer might be lost
// with it.
Task<void> Client::LingeringClose() {
  ErrorCode ignored;
  link_.socket().shutdown(Socket::shutdown_send, ignored);
  in_.consume(in_.size());
  in_.shrink_to_fit();
  const int64_t until_ms = NowMs() + kLingerMs;
  for (size_t dropped = 0; dropped < kLingerBytes; dropped += in_.size()) {
    in_.consume(in_.size());
    const int64_t left_ms = until_ms - NowMs();
    if (left_ms <= 0) break;
    link_.ExpireIn(std::min(left_ms, kLingerIdleMs));
    const Transferred read = co_await ReadMore(kLingerRead);
    if (!Took(read)) break;
  }
}

void Client::BreakOff() {
  if (!unframed_) return;
  ErrorCode ignored;
  link_.socket().set_option(asio::socket_base::linger(true, 0), ignored);
}

void Client::BeginRequest() {
  serving_ = true;
  asked_ = true;
  written_ = 0;
}

void Client::EndRequest() {
  serving_ = false;
  watched_ = false;
  unframed_ = false;
}

void Client::Look() {
  if (!watched_ || waiting_ || left_) return;
  const int fd = link_.socket().native_handle();
  if (HasHungUp(fd)) return Leave();
  // The next request, pipelined, keeps the socket readable: the next sweep looks again.
  if (!IsQuiet(fd)) return;
  waiting_ = true;
  link_.socket().async_wait(Socket::wait_read, [self = shared_from_this()](const ErrorCode& error) {
    self->waiting_ = false;
    if (!error) self->Look();
  });
}

void Client::Leave() {
  if (std::exchange(left_, true)) return;
  BreakOff();
  Close();
  if (on_left_) on_left_();
}

int64_t Client::IdleMs() const {
  return shard_.shared.draining.load() ? kFirstRequestMs
                                       : shard_.shared.options.limits.keep_alive_ms;
}

void Client::CloseIfIdle() {
  if (serving_ || in_.size() > 0 || !link_.socket().is_open()) return;
  if (!asked_) {
    link_.ExpireIn(IdleMs());
  } else if (IsQuiet(link_.socket().native_handle())) {
    Close();
  }
}

}  // namespace lorry::door
