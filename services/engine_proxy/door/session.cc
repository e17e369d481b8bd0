#include "services/engine_proxy/door/session.h"

#include <sys/socket.h>

#include <array>
#include <boost/asio/write.hpp>
#include <cerrno>
#include <chrono>
#include <utility>

namespace lorry::door {
namespace {

constexpr size_t kReadBytes = 16 * 1024;
// What a client may still be sending while it is told that its request is refused.
constexpr size_t kLingerBytes = 256 * 1024;
constexpr int64_t kLingerMs = 1'000;

int64_t UnixMs() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

Session::Session(Shard& shard, Socket socket)
    : shard_(shard),
      limits_(shard.shared.options.limits),
      client_(shard.sweeper, std::move(socket)) {
  shard_.sessions.insert(this);
  ErrorCode ignored;
  client_.socket().set_option(Tcp::no_delay(true), ignored);
}

Session::~Session() {
  shard_.sessions.erase(this);
  shard_.shared.body_bytes -= body_lease_;
  shard_.shared.connections.fetch_sub(1);
}

void Session::LeaveIfIdle() {
  if (idle_ && in_.size() == 0) client_.Close();
}

void Session::Abandon() {
  client_.Close();
  OnClientLeft();
}

Task<void> Session::Run() {
  const std::shared_ptr<Session> self = shared_from_this();
  bool keep = true;
  while (keep && !client_left_) {
    std::optional<RequestHead> head = co_await ReadHead();
    if (!head) break;
    idle_ = false;
    Exchange x;
    x.head = std::move(*head);
    x.began_ms = NowMs();
    x.record.began_unix_ms = UnixMs();
    x.record.request_id = shard_.NewId();
    x.record.path = x.head.path.substr(0, 128);
    x.record.client_id = std::string(x.head.Get("x-request-id").substr(0, 128));
    written_ = 0;
    exchange_ = &x;
    keep = co_await Serve(x);
    exchange_ = nullptr;
    Finish(x);
    idle_ = true;
  }
  client_.Close();
}

void Session::Finish(Exchange& x) {
  x.admission.Release();
  shard_.shared.body_bytes -= std::exchange(body_lease_, 0);
  if (x.live && !x.record.client_id.empty()) {
    shard_.shared.live_ids.Remove(x.record.client_id, x.live.get());
  }
  x.record.done_ms = NowMs() - x.began_ms;
  x.record.reply_bytes = written_;
  if (client_left_ && x.record.status == 0) x.record.status = 499;
  if (client_left_ && x.record.reason.empty()) x.record.reason = "CLIENT_GONE";
  if (DoorObserver* observer = shard_.shared.options.observer) {
    observer->OnDone(x.record.status, static_cast<double>(x.record.done_ms) / 1000.0, written_);
  }
  x.record.resolved = std::move(x.resolved);
  shard_.shared.explained.Put(std::move(x.record));
}

Task<bool> Session::WriteClient(std::string_view a, std::string_view b, std::string_view c) {
  if (client_left_) co_return false;
  const std::array<asio::const_buffer, 3> buffers = {asio::buffer(a.data(), a.size()),
                                                     asio::buffer(b.data(), b.size()),
                                                     asio::buffer(c.data(), c.size())};
  client_.ExpireIn(limits_.client_write_ms);
  auto [error, n] = co_await asio::async_write(client_.socket(), buffers, kAwait);
  client_.NeverExpire();
  written_ += n;
  if (error) OnClientLeft();
  co_return !error;
}

// Before there is a request to speak of: the bytes that follow cannot be trusted, so the connection
// ends.
Task<bool> Session::Reject(int status, std::string message) {
  const auto table = shard_.shared.router.table();
  const std::string body =
      ErrorBody(table->engine, "", {status, "REQUEST_INVALID", std::move(message)});
  if (DoorObserver* observer = shard_.shared.options.observer) {
    observer->OnRefused("REQUEST_INVALID");
  }
  std::string head = StatusLine(status);
  AppendField("Content-Type", "application/json", &head);
  AppendField("Content-Length", std::to_string(body.size()), &head);
  AppendField("Connection", "close", &head);
  AppendField("X-Lorry-Request-Id", exchange_ ? exchange_->record.request_id : shard_.NewId(),
              &head);
  if (exchange_) {
    exchange_->record.status = status;
    exchange_->record.reason = "REQUEST_INVALID";
  }
  const bool sent = co_await WriteClient(head, "\r\n", body);
  if (sent) co_await LingeringClose();
  co_return false;
}

// Closing with unread bytes in the socket would reset the connection, and the answer might be lost
// with it.
Task<void> Session::LingeringClose() {
  ErrorCode ignored;
  client_.socket().shutdown(Socket::shutdown_send, ignored);
  client_.ExpireIn(kLingerMs);
  size_t dropped = 0;
  in_.consume(in_.size());
  while (dropped < kLingerBytes) {
    auto [error, n] = co_await client_.socket().async_read_some(in_.prepare(kReadBytes), kAwait);
    if (error) break;
    dropped += n;
  }
}

void Session::WatchClient() {
  if (watching_ || client_left_) return;
  watching_ = true;
  client_.socket().async_wait(
      Socket::wait_read, [self = shared_from_this()](const ErrorCode& error) {
        self->watching_ = false;
        if (error || !self->client_.socket().is_open()) return;
        // Between two requests ReadHead reads, and sees for itself when the client leaves.
        if (self->exchange_ == nullptr) return;
        char byte;
        const ssize_t n =
            ::recv(self->client_.socket().native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
        if (n > 0)
          return;  // the next request, pipelined: nothing more can be learnt until it is read
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) {
          self->WatchClient();
        } else {
          self->OnClientLeft();
        }
      });
}

void Session::OnClientLeft() {
  if (client_left_) return;
  client_left_ = true;
  client_.Close();
  Exchange* x = exchange_;
  if (x == nullptr) return;
  if (x->hold) x->hold->cancel();
  if (!x->live) {
    if (x->call) x->call->Cancel();
    return;
  }
  x->live->abort_wanted = true;
  if (x->live->answered) AbortOnce(*x);
}

}  // namespace lorry::door
