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
constexpr std::string_view kHeadEnd = "\r\n\r\n";

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

Task<std::optional<RequestHead>> Session::ReadHead() {
  size_t searched = 0;
  client_.ExpireIn(in_.size() > 0 ? limits_.head_ms : limits_.keep_alive_ms);
  std::string_view raw;
  for (;;) {
    raw = {static_cast<const char*>(in_.data().data()), in_.size()};
    const size_t end = raw.find(kHeadEnd, searched);
    if (end != std::string_view::npos) {
      raw = raw.substr(0, end + kHeadEnd.size());
      break;
    }
    if (raw.size() > limits_.head.bytes) {
      co_await Reject(431, "the request head is too large");
      co_return std::nullopt;
    }
    searched = raw.size() < kHeadEnd.size() ? 0 : raw.size() - kHeadEnd.size();
    auto [error, n] = co_await client_.socket().async_read_some(in_.prepare(kReadBytes), kAwait);
    if (error) co_return std::nullopt;
    if (in_.size() == 0)
      client_.ExpireIn(limits_.head_ms);  // from the first byte, for the whole head
    in_.commit(n);
  }
  client_.NeverExpire();
  auto read = lorry::door::ReadHead(raw, limits_.head);
  if (HeadProblem* problem = std::get_if<HeadProblem>(&read)) {
    co_await Reject(problem->status, std::move(problem->message));
    co_return std::nullopt;
  }
  co_return std::get<RequestHead>(std::move(read));
}

Task<bool> Session::ReadRequestBody(Exchange& x) {
  const auto too_large = [&] {
    return Reject(413, "the body is larger than " + std::to_string(limits_.body_bytes) + " bytes");
  };
  if (x.head.content_length.value_or(0) > limits_.body_bytes) {
    co_await too_large();
    co_return false;
  }
  parser_.emplace();
  parser_->eager(true);
  parser_->header_limit(static_cast<uint32_t>(limits_.head.bytes));
  parser_->body_limit(limits_.body_bytes);
  bool continued = !x.head.expects_continue;
  std::atomic<size_t>& all = shard_.shared.body_bytes;
  for (;;) {
    ErrorCode error;
    if (in_.size() > 0) in_.consume(parser_->put(in_.data(), error));
    const size_t have = parser_->get().body().size();
    all += have - body_lease_;
    body_lease_ = have;
    if (parser_->is_done()) break;
    if (error == http::error::body_limit) {
      co_await too_large();
      co_return false;
    }
    if ((error && error != http::error::need_more) || in_.size() > limits_.head.bytes) {
      co_await Reject(400, "the body's framing is not HTTP/1.1: " + error.message());
      co_return false;
    }
    if (all.load() > limits_.all_bodies_bytes) {
      co_await Reject(503, "too many bytes of request bodies are being received");
      co_return false;
    }
    if (!continued) {
      continued = true;
      const bool sent = co_await WriteClient("HTTP/1.1 100 Continue\r\n\r\n", {}, {});
      if (!sent) co_return false;
    }
    client_.ExpireIn(limits_.body_ms);
    auto [failed, n] =
        co_await client_.socket().async_read_some(in_.prepare(4 * kReadBytes), kAwait);
    if (failed) co_return false;
    in_.commit(n);
    client_.NeverExpire();
  }
  x.body = std::move(parser_->get().body());
  parser_.reset();
  written_ = 0;
  co_return true;
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
        char byte;
        const ssize_t n =
            ::recv(self->client_.socket().native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
        if (n > 0)
          return;  // the next request, pipelined: nothing more can be learnt until it is read
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) {
          self->WatchClient();
        } else if (self->exchange_) {
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
