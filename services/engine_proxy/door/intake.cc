// Session: reading one request.
#include <algorithm>
#include <utility>

#include "services/engine_proxy/door/session.h"

namespace lorry::door {
namespace {

constexpr size_t kReadBytes = 16 * 1024;
constexpr std::string_view kHeadEnd = "\r\n\r\n";
// A Content-Length is a claim: room beyond this is made as the bytes come. Most bodies fit.
constexpr size_t kRoomAtOnce = 256 * 1024;
// What PaddedBody adds behind the body, so that it need not be moved for it.
constexpr size_t kPadding = 64;

}  // namespace

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
  head_bytes_ = raw.size();
  auto read = lorry::door::ReadHead(raw, limits_.head);
  if (HeadProblem* problem = std::get_if<HeadProblem>(&read)) {
    co_await Reject(problem->status, std::move(problem->message));
    co_return std::nullopt;
  }
  co_return std::get<RequestHead>(std::move(read));
}

Task<bool> Session::ReadRequestBody(Exchange& x) {
  const uint64_t length = x.head.content_length.value_or(0);
  bool read = false;
  if (length > limits_.body_bytes) {
    read = co_await RejectTooLarge();
  } else if (x.head.chunked) {
    read = co_await ReadChunkedBody(x);
  } else {
    read = co_await ReadSizedBody(x, length);
  }
  written_ = 0;
  co_return read;
}

// The framing was read with the head: what follows it are the body's bytes.
Task<bool> Session::ReadSizedBody(Exchange& x, size_t length) {
  in_.consume(head_bytes_);
  x.body.reserve(std::min(length, kRoomAtOnce) + kPadding);
  bool continued = !x.head.expects_continue;
  for (;;) {
    const size_t here = std::min(in_.size(), length - x.body.size());
    x.body.append(static_cast<const char*>(in_.data().data()), here);
    in_.consume(here);
    const bool room = LeaseBody(x.body.size());
    if (x.body.size() == length) co_return true;
    if (!room) co_return co_await RejectNoRoom();
    const bool more = co_await ReadMoreBody(&continued);
    if (!more) co_return false;
  }
}

Task<bool> Session::ReadChunkedBody(Exchange& x) {
  parser_.emplace();
  parser_->eager(true);
  parser_->header_limit(static_cast<uint32_t>(limits_.head.bytes));
  parser_->body_limit(limits_.body_bytes);
  bool continued = !x.head.expects_continue;
  for (;;) {
    ErrorCode error;
    if (in_.size() > 0) in_.consume(parser_->put(in_.data(), error));
    const bool room = LeaseBody(parser_->get().body().size());
    if (parser_->is_done()) break;
    if (error == http::error::body_limit) co_return co_await RejectTooLarge();
    if ((error && error != http::error::need_more) || in_.size() > limits_.head.bytes) {
      co_return co_await Reject(400, "the body's framing is not HTTP/1.1: " + error.message());
    }
    if (!room) co_return co_await RejectNoRoom();
    const bool more = co_await ReadMoreBody(&continued);
    if (!more) co_return false;
  }
  x.body = std::move(parser_->get().body());
  parser_.reset();
  co_return true;
}

// False: the connection has ended.
Task<bool> Session::ReadMoreBody(bool* continued) {
  if (!std::exchange(*continued, true)) {
    const bool sent = co_await WriteClient("HTTP/1.1 100 Continue\r\n\r\n", {}, {});
    if (!sent) co_return false;
  }
  client_.ExpireIn(limits_.body_ms);
  auto [failed, n] = co_await client_.socket().async_read_some(in_.prepare(4 * kReadBytes), kAwait);
  if (failed) co_return false;
  in_.commit(n);
  client_.NeverExpire();
  co_return true;
}

// False: what all requests together hold is more than they may.
bool Session::LeaseBody(size_t bytes) {
  std::atomic<size_t>& all = shard_.shared.body_bytes;
  all += bytes - body_lease_;
  body_lease_ = bytes;
  return all.load() <= limits_.all_bodies_bytes;
}

Task<bool> Session::RejectTooLarge() {
  return Reject(413, "the body is larger than " + std::to_string(limits_.body_bytes) + " bytes");
}

Task<bool> Session::RejectNoRoom() {
  return Reject(503, "too many bytes of request bodies are being received");
}

}  // namespace lorry::door
