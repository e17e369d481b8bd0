#include "services/engine_proxy/door/upstream.h"

#include <sys/socket.h>

#include <array>
#include <boost/asio/write.hpp>
#include <cerrno>
#include <utility>

namespace lorry::door {
namespace {

// Tokens come in pieces of 100 bytes to 4 KiB; 16 KiB a stream are 32 MB for 2,000 streams.
constexpr size_t kPieceBytes = 16 * 1024;
constexpr size_t kHeadBytes = 64 * 1024;
// Room for these at once saves growing step by step.
constexpr size_t kUsualFields = 16;
// Chunk framing that has not ended within this is no chunk framing.
constexpr size_t kBufferBytes = 128 * 1024;

// Neither closed nor talking: an engine has nothing to say on an idle connection.
bool IsQuiet(Socket& socket) {
  char byte;
  const ssize_t n = ::recv(socket.native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
}

}  // namespace

Task<CallResult> UpstreamPool::Acquire(bool fresh, std::unique_ptr<UpstreamConnection>* out) {
  while (!fresh && !idle_.empty()) {
    std::unique_ptr<UpstreamConnection> connection = std::move(idle_.back());
    idle_.pop_back();
    const bool young = NowMs() - connection->idle_since_ms < limits_.engine_pool_ms;
    if (!young || !IsQuiet(connection->link.socket())) continue;
    connection->reused = true;
    *out = std::move(connection);
    co_return CallResult::kOk;
  }
  auto connection = std::make_unique<UpstreamConnection>(sweeper_, Socket(io_.get_executor()));
  connection->link.ExpireIn(limits_.engine_connect_ms);
  auto [error] = co_await connection->link.socket().async_connect(endpoint_, kAwait);
  if (error) {
    co_return connection->link.expired() ? CallResult::kTimedOut : CallResult::kUnreachable;
  }
  connection->link.NeverExpire();
  ErrorCode ignored;
  connection->link.socket().set_option(Tcp::no_delay(true), ignored);
  *out = std::move(connection);
  co_return CallResult::kOk;
}

void UpstreamPool::GiveBack(std::unique_ptr<UpstreamConnection> connection) {
  if (idle_.size() >= limits_.pooled_connections) return;
  connection->link.NeverExpire();
  connection->idle_since_ms = NowMs();
  idle_.push_back(std::move(connection));
}

void UpstreamPool::CloseIdle() {
  const int64_t oldest = NowMs() - limits_.engine_pool_ms;
  std::erase_if(idle_, [&](const auto& connection) {
    return connection->idle_since_ms <= oldest || !connection->link.socket().is_open();
  });
}

Task<CallResult> UpstreamCall::Start(std::string head, std::string_view body,
                                     bool is_head_request) {
  for (const bool fresh : {false, true}) {
    const CallResult acquired = co_await pool_.Acquire(fresh, &connection_);
    if (cancelled_) co_return CallResult::kBroken;
    if (acquired != CallResult::kOk) co_return acquired;
    const CallResult result = co_await Attempt(head, body, is_head_request);
    const bool stale = result == CallResult::kBroken && connection_->reused && received_ == 0;
    if (!stale || cancelled_) co_return result;
  }
  co_return CallResult::kBroken;
}

Task<CallResult> UpstreamCall::Attempt(std::string_view head, std::string_view body,
                                       bool is_head_request) {
  const std::array<asio::const_buffer, 2> request = {asio::buffer(head.data(), head.size()),
                                                     asio::buffer(body.data(), body.size())};
  connection_->link.ExpireIn(limits_.engine_idle_ms);
  auto [error, sent] = co_await asio::async_write(connection_->link.socket(), request, kAwait);
  (void)sent;
  // An engine may answer (413, 400) and close before it has read the body: what it said is still
  // read.
  if (error && connection_->reused) co_return Failure();
  for (;;) {
    parser_.emplace();
    parser_->header_limit(kHeadBytes);
    parser_->body_limit(boost::none);
    parser_->skip(is_head_request);
    parser_->get().body().data = nullptr;
    parser_->get().body().size = 0;
    while (!parser_->is_header_done()) {
      ErrorCode parsed;
      if (connection_->buffer.size() > 0) {
        connection_->buffer.consume(parser_->put(connection_->buffer.data(), parsed));
      } else {
        parsed = http::error::need_more;
      }
      if (parser_->is_header_done()) break;
      if (parsed && parsed != http::error::need_more) co_return CallResult::kBroken;
      const bool filled = co_await Fill();
      if (!filled) co_return Failure();
    }
    parser_->eager(true);
    if (status() >= 200) break;  // 1xx are the connection's own affair
  }
  pending_end_ = !parser_->is_done() && parser_->need_eof();
  co_return CallResult::kOk;
}

Task<bool> UpstreamCall::Fill() {
  if (cancelled_ || connection_->buffer.size() >= kBufferBytes) co_return false;
  connection_->link.ExpireIn(limits_.engine_idle_ms);
  auto [error, n] = co_await connection_->link.socket().async_read_some(
      connection_->buffer.prepare(kPieceBytes), kAwait);
  if (error) co_return false;
  connection_->buffer.commit(n);
  received_ += n;
  co_return true;
}

Task<UpstreamCall::Piece> UpstreamCall::Read() {
  std::unique_ptr<char[]>& bytes = connection_->piece;
  if (!bytes) bytes = std::make_unique_for_overwrite<char[]>(kPieceBytes);
  auto& body = parser_->get().body();
  body.data = bytes.get();
  body.size = kPieceBytes;
  body.more = true;
  for (;;) {
    ErrorCode error;
    if (!parser_->is_done() && connection_->buffer.size() > 0) {
      connection_->buffer.consume(parser_->put(connection_->buffer.data(), error));
    }
    const size_t produced = kPieceBytes - body.size;
    const Piece piece{{bytes.get(), produced}, parser_->is_done(), false};
    if (piece.end) co_return piece;
    if (error && error != http::error::need_more && error != http::error::need_buffer) {
      co_return Piece{{}, false, true};
    }
    if (produced > 0) co_return piece;
    const bool filled = co_await Fill();
    if (filled) continue;
    ErrorCode ended;
    if (pending_end_ && !cancelled_ && !timed_out()) parser_->put_eof(ended);
    co_return Piece{{}, parser_->is_done() && !ended, !parser_->is_done() || ended.failed()};
  }
}

void UpstreamCall::Cancel() {
  cancelled_ = true;
  if (connection_) connection_->link.Close();
}

void UpstreamCall::Finish() {
  if (!connection_) return;
  const bool keep = !cancelled_ && parser_ && parser_->is_done() && parser_->keep_alive() &&
                    connection_->buffer.size() == 0;
  if (keep) pool_.GiveBack(std::move(connection_));
  connection_.reset();
}

std::string_view UpstreamCall::Field(std::string_view name) const {
  const auto value = parser_->get()[beast::string_view(name.data(), name.size())];
  return {value.data(), value.size()};
}

std::vector<HeaderField> UpstreamCall::Fields() const {
  std::vector<HeaderField> fields;
  fields.reserve(kUsualFields);
  for (const auto& field : parser_->get()) {
    const auto name = field.name_string();
    const auto value = field.value();
    fields.push_back(
        {std::string(name.data(), name.size()), std::string(value.data(), value.size())});
  }
  return fields;
}

std::optional<uint64_t> UpstreamCall::content_length() const {
  const auto length = parser_->content_length();
  return length ? std::optional<uint64_t>(*length) : std::nullopt;
}

}  // namespace lorry::door
