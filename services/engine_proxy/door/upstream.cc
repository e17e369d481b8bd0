#include "services/engine_proxy/door/upstream.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <exception>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "services/engine_proxy/door/tcp.h"

namespace lorry::door {
namespace {

// Tokens come in pieces of 100 bytes to 4 KiB. A read that fills its room doubles the next one's.
constexpr size_t kKeptBytes = 8 * 1024;  // by an idle connection
constexpr size_t kReadBytesMost = 64 * 1024;
// Framing that has not ended within this is no framing.
constexpr size_t kBufferBytes = 128 * 1024;
// An engine that is away is asked for by every request, and each thread asks the name server.
constexpr int64_t kLookUpAgainMs = 2'000;

CallResult WhyNoConnection(const ErrorCode& error) {
  namespace e = boost::system::errc;
  for (const auto ours : {e::too_many_files_open, e::too_many_files_open_in_system,
                          e::no_buffer_space, e::not_enough_memory, e::address_not_available}) {
    if (error == ours) return CallResult::kNoSockets;
  }
  return CallResult::kUnreachable;
}

}  // namespace

std::unique_ptr<UpstreamConnection> UpstreamPool::TakeIdle() {
  while (!idle_.empty()) {
    std::unique_ptr<UpstreamConnection> connection = std::move(idle_.back());
    idle_.pop_back();
    // An engine has nothing to say on an idle connection but that it closes it.
    const bool young = NowMs() - connection->idle_since_ms < limits_.engine_pool_ms;
    if (!young || !IsQuiet(connection->link.socket().native_handle())) continue;
    connection->reused = true;
    return connection;
  }
  return nullptr;
}

Task<CallResult> UpstreamPool::Connect(std::unique_ptr<UpstreamConnection>* out) {
  CallResult failed = CallResult::kNoSockets;
  const Endpoints endpoints = endpoints_;  // which may be set anew meanwhile
  for (const Tcp::endpoint& at : endpoints) {
    const CallResult result = co_await Connect(at, out);
    // A refusal tells more than an address that this machine has no way to, as ::1 without IPv6.
    if (result == CallResult::kUnreachable) failed = result;
    if (result != CallResult::kOk) continue;
    const auto answers = std::find(endpoints_.begin(), endpoints_.end(), at);
    if (answers != endpoints_.end()) std::iter_swap(endpoints_.begin(), answers);
    co_return result;
  }
  if (failed == CallResult::kUnreachable) LookUp();
  co_return failed;
}

void UpstreamPool::LookUpNow() {
  look_up_after_ms_ = 0;
  look_again_ = looks_up_;
  LookUp();
}

void UpstreamPool::LookUp() {
  if (NowMs() < look_up_after_ms_ || std::exchange(looks_up_, true)) return;
  // It throws where the resolver gets no thread.
  asio::co_spawn(io_, FindEngine(), [this](const std::exception_ptr& thrown) {
    looks_up_ = false;
    if (thrown) spdlog::warn("there is no thread to look up {} with", options_.engine_host);
    if (std::exchange(look_again_, false)) LookUpNow();
  });
}

Task<void> UpstreamPool::FindEngine() {
  asio::ip::basic_resolver<Tcp, Executor> resolver(io_.get_executor());
  auto [error, found] = co_await resolver.async_resolve(
      options_.engine_host, std::to_string(options_.engine_port), kAwait);
  look_up_after_ms_ = NowMs() + kLookUpAgainMs;
  if (!error) {
    endpoints_.assign(found.begin(), found.end());
  } else {
    spdlog::warn("the engine's host {} cannot be looked up, its last address is kept: {}",
                 options_.engine_host, error.message());
  }
}

Task<CallResult> UpstreamPool::Connect(Tcp::endpoint at, std::unique_ptr<UpstreamConnection>* out) {
  auto connection = std::make_unique<UpstreamConnection>(sweeper_, Socket(io_.get_executor()));
  TimedSocket& link = connection->link;
  ErrorCode opened;
  link.socket().open(at.protocol(), opened);
  if (opened) co_return WhyNoConnection(opened);
  link.ExpireIn(limits_.engine_connect_ms);
  auto [error] = co_await link.socket().async_connect(at, kAwait);
  link.NeverExpire();
  if (error) co_return WhyNoConnection(error);
  ErrorCode ignored;
  link.socket().set_option(Tcp::no_delay(true), ignored);
  link.socket().non_blocking(true, ignored);
  DetectDeadPeer(link.socket().native_handle(), limits_.engine_write_ms);
  *out = std::move(connection);
  co_return CallResult::kOk;
}

void UpstreamPool::GiveBack(std::unique_ptr<UpstreamConnection> connection) {
  if (idle_.size() >= limits_.pooled_connections) return;
  if (connection->buffer.capacity() > kKeptBytes) connection->buffer.shrink_to_fit();
  connection->idle_since_ms = NowMs();
  idle_.push_back(std::move(connection));
}

void UpstreamPool::CloseIdle() {
  const int64_t oldest = NowMs() - limits_.engine_pool_ms;
  std::erase_if(idle_, [&](const auto& connection) {
    return connection->idle_since_ms <= oldest || !connection->link.socket().is_open();
  });
}

Task<CallResult> UpstreamCall::Start(std::span<const asio::const_buffer> request,
                                     bool answers_head) {
  answers_head_ = answers_head;
  for (const bool fresh : {false, true}) {
    connection_ = fresh ? nullptr : pool_.TakeIdle();
    if (!connection_) {
      const CallResult connected = co_await pool_.Connect(&connection_);
      if (cancelled_) co_return CallResult::kBroken;
      if (connected != CallResult::kOk) co_return connected;
    }
    sent_before_ = connection_->sent;
    TimedSocket& link = connection_->link;
    absl::InlinedVector<asio::const_buffer, 6> pieces(request.begin(), request.end());
    std::span<asio::const_buffer> left(pieces.data(), pieces.size());
    ErrorCode error = link.WriteNow(&left, &connection_->sent);
    if (!error && !left.empty()) {
      error = co_await link.WriteRest(left, limits_.engine_write_ms, &connection_->sent);
    }
    // One that takes nothing for so long has not got the whole request and never will.
    if (error && link.expired()) co_return CallResult::kUnreachable;
    // An engine may answer (413, 400) and close before it has read the body: what it said is still
    // read.
    std::optional<CallResult> result;
    if (error && connection_->reused) result = CallResult::kBroken;
    while (!result) {
      const Transferred read = co_await ReadMore();
      result = HeadAfter(read);
    }
    const bool unread = result == CallResult::kBroken && connection_->reused && received_ == 0 &&
                        !cancelled_ &&
                        AcknowledgedOnly(link.socket().native_handle(), sent_before_);
    if (!unread) co_return *result;
  }
  co_return CallResult::kBroken;
}

Task<CallResult> UpstreamCall::WaitForHead() {
  WaitForEver();
  std::optional<CallResult> result;
  while (!result) {
    const Transferred read = co_await ReadMore();
    result = HeadAfter(read);
  }
  co_return *result;
}

std::optional<CallResult> UpstreamCall::HeadAfter(const Transferred& read) {
  const CallResult took = Took(read);
  return took == CallResult::kOk ? ParseHead() : took;
}

std::optional<CallResult> UpstreamCall::ParseHead() {
  beast::flat_buffer& buffer = connection_->buffer;
  for (;;) {
    if (!parser_) parser_.emplace(answers_head_);
    const std::optional<size_t> used = Parse();
    if (!used) return CallResult::kInvalid;
    buffer.consume(*used);
    if (!parser_->has_head()) return std::nullopt;
    if (parser_->status() >= 200) return CallResult::kOk;
    parser_.reset();  // 1xx are the connection's own affair
  }
}

std::string_view UpstreamCall::Here() const {
  const auto bytes = connection_->buffer.data();
  return {static_cast<const char*>(bytes.data()), bytes.size()};
}

std::string UpstreamCall::Problem(CallResult result) const {
  return result == CallResult::kInvalid ? parser_->Problem(Here()) : "";
}

CallResult UpstreamCall::Took(const Transferred& read) {
  const auto& [error, n] = read;
  TimedSocket& link = connection_->link;
  link.NeverExpire();
  link.Took();
  if (error && link.expired() && !cancelled_) return CallResult::kSilent;
  if (error) return CallResult::kBroken;
  connection_->buffer.commit(n);
  received_ += n;
  if (n == read_bytes_) read_bytes_ = std::min(2 * read_bytes_, kReadBytesMost);
  return CallResult::kOk;
}

std::optional<UpstreamCall::Piece> UpstreamCall::Next() {
  beast::flat_buffer& buffer = connection_->buffer;
  buffer.consume(std::exchange(used_, 0));
  parser_->ForgetPieces();
  const std::optional<size_t> used = Parse();
  used_ = used.value_or(0);
  if (!used) return Piece{{}, false, CallResult::kInvalid};
  const Piece piece{parser_->pieces(), parser_->is_done()};
  if (piece.end) return piece;
  if (!piece.data.empty()) return piece;
  buffer.consume(std::exchange(used_, 0));
  if (buffer.size() >= kBufferBytes) return Piece{{}, false, CallResult::kInvalid};
  return std::nullopt;
}

Task<UpstreamCall::Piece> UpstreamCall::Read() {
  for (;;) {
    if (const auto piece = Next()) co_return *piece;
    const Transferred read = co_await ReadMore();
    const CallResult took = Took(read);
    if (took == CallResult::kOk) continue;
    const bool is_end =
        std::get<0>(read) == asio::error::eof && parser_->ends_with_connection() && !cancelled_;
    co_return is_end ? Piece{{}, true} : Piece{{}, false, took};
  }
}

void UpstreamCall::Cancel() {
  cancelled_ = true;
  if (connection_) connection_->link.Close();
}

void UpstreamCall::Finish() {
  if (!connection_) return;
  connection_->buffer.consume(std::exchange(used_, 0));
  const bool keep = !cancelled_ && parser_ && parser_->is_done() && parser_->keep_alive() &&
                    connection_->buffer.size() == 0;
  if (keep) pool_.GiveBack(std::move(connection_));
  connection_.reset();
}

}  // namespace lorry::door
