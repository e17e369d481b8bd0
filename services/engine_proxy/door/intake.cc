#include "services/engine_proxy/door/intake.h"

#include <algorithm>
#include <utility>

namespace lorry::door {
namespace {

constexpr size_t kReadBytes = 4 * 1024;
constexpr size_t kReadBodyBytes = 64 * 1024;
// What an idle connection keeps of the room that a body was read through.
constexpr size_t kKeptBytes = 8 * 1024;
constexpr std::string_view kHeadEnd = "\r\n\r\n";
constexpr std::string_view kLineEnd = "\r\n";
// A Content-Length is a claim: room beyond this is made as the bytes come. Most bodies fit.
constexpr size_t kRoomAtOnce = 256 * 1024;
// What PaddedBody adds behind the body, so that it need not be moved for it.
constexpr size_t kPadding = 64;

HeadProblem Ended() { return {0, ""}; }

HeadProblem NoRoom() { return {503, "the door holds too many bytes of request bodies; try again"}; }

}  // namespace

RequestReader::RequestReader(Shard& shard, Client& client)
    : client_(client), limits_(shard.shared.options.limits) {}

Task<std::variant<RequestHead, HeadProblem>> RequestReader::ReadHead() {
  beast::flat_buffer& in = client_.in();
  size_t searched = 0;
  bool began = in.size() > 0;
  client_.link().ExpireIn(began ? limits_.head_ms : client_.IdleMs());
  std::string_view raw;
  for (;;) {
    raw = {static_cast<const char*>(in.data().data()), in.size()};
    // RFC 9112 §2.2: empty lines before a request are no part of it.
    for (; searched == 0 && raw.starts_with(kLineEnd); raw.remove_prefix(kLineEnd.size())) {
      in.consume(kLineEnd.size());
    }
    const size_t end = raw.find(kHeadEnd, searched);
    if (end != std::string_view::npos) {
      raw = raw.substr(0, end + kHeadEnd.size());
      break;
    }
    if (raw.size() > limits_.head.bytes) {
      co_return HeadProblem{431, "the request head is too large"};
    }
    searched = raw.size() < kHeadEnd.size() ? 0 : raw.size() - kHeadEnd.size();
    const Transferred read = co_await client_.ReadMore(kReadBytes);
    if (!client_.Took(read)) co_return Ended();
    if (!std::exchange(began, true)) client_.link().ExpireIn(limits_.head_ms);  // for all of it
  }
  client_.link().NeverExpire();
  head_bytes_ = raw.size();
  co_return door::ReadHead(raw, limits_.head);
}

bool RequestReader::TakeBody(const RequestHead& head, std::string* body, BodyLease* lease) {
  beast::flat_buffer& in = client_.in();
  const uint64_t length = head.content_length.value_or(0);
  if (head.chunked || in.size() - head_bytes_ < length || length > limits_.body_bytes) return false;
  in.consume(head_bytes_);
  body->reserve(length + kPadding);
  body->append(static_cast<const char*>(in.data().data()), length);
  in.consume(length);
  GiveRoomBack();
  lease->Resize(length);
  return true;
}

Task<std::optional<HeadProblem>> RequestReader::ReadBody(const RequestHead& head, std::string* body,
                                                         BodyLease* lease) {
  continue_due_ = head.expects_continue;
  return head.chunked ? ReadChunked(body, lease)
                      : ReadSized(head.content_length.value_or(0), body, lease);
}

void RequestReader::GiveRoomBack() {
  beast::flat_buffer& in = client_.in();
  if (in.capacity() > kKeptBytes) in.shrink_to_fit();
}

// The framing was read with the head: what follows it are the body's bytes.
Task<RequestReader::Problem> RequestReader::ReadSized(size_t length, std::string* body,
                                                      BodyLease* lease) {
  if (length > limits_.body_bytes) co_return TooLarge();
  beast::flat_buffer& in = client_.in();
  in.consume(head_bytes_);
  body->reserve(std::min(length, kRoomAtOnce) + kPadding);
  for (;;) {
    const size_t here = std::min(in.size(), length - body->size());
    body->append(static_cast<const char*>(in.data().data()), here);
    in.consume(here);
    const bool room = lease->Resize(body->size());
    if (body->size() == length) break;
    if (!room) co_return NoRoom();
    const bool more = co_await ReadMore(std::min(kReadBodyBytes, length - body->size()));
    if (!more) co_return Ended();
  }
  GiveRoomBack();
  co_return std::nullopt;
}

Task<RequestReader::Problem> RequestReader::ReadChunked(std::string* body, BodyLease* lease) {
  beast::flat_buffer& in = client_.in();
  parser_.emplace();
  parser_->eager(true);
  parser_->header_limit(static_cast<uint32_t>(limits_.head.bytes));
  parser_->body_limit(limits_.body_bytes);
  for (;;) {
    ErrorCode error;
    if (in.size() > 0) in.consume(parser_->put(in.data(), error));
    const bool room = lease->Resize(parser_->get().body().size());
    if (parser_->is_done()) break;
    if (error == http::error::body_limit) co_return TooLarge();
    if ((error && error != http::error::need_more) || in.size() > limits_.head.bytes) {
      co_return HeadProblem{400, "the body's framing is not HTTP/1.1: " + error.message()};
    }
    if (!room) co_return NoRoom();
    const bool more = co_await ReadMore(kReadBodyBytes);
    if (!more) co_return Ended();
  }
  GiveRoomBack();
  *body = std::move(parser_->get().body());
  parser_.reset();
  co_return std::nullopt;
}

Task<bool> RequestReader::ReadMore(size_t room) {
  if (std::exchange(continue_due_, false)) {
    const bool sent = co_await client_.Write("HTTP/1.1 100 Continue\r\n\r\n");
    if (!sent) co_return false;
    client_.ForgetWritten();  // no part of the reply
  }
  client_.link().ExpireIn(limits_.body_ms);
  const Transferred read = co_await client_.ReadMore(room);
  client_.link().NeverExpire();
  co_return client_.Took(read);
}

HeadProblem RequestReader::TooLarge() const {
  return {413, "the body is larger than " + std::to_string(limits_.body_bytes) + " bytes"};
}

}  // namespace lorry::door
