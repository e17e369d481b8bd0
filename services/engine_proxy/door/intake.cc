#include "services/engine_proxy/door/intake.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "services/engine_proxy/door/routes.h"
#include "services/engine_proxy/door/tcp.h"

namespace lorry::door {
namespace {

constexpr size_t kReadChunkBytes = 64 * 1024;
// What an idle connection keeps of the room that a body was read into.
constexpr size_t kKeptBytes = 8 * 1024;
constexpr std::string_view kHeadEnd = "\r\n\r\n";
constexpr std::string_view kLineEnd = "\r\n";
// A Content-Length is a claim: room beyond this is made as the bytes come. Most bodies fit.
constexpr size_t kRoomAtOnce = 256 * 1024;
// How often a call that carries tensors looks whether there is room for it.
constexpr std::chrono::milliseconds kLookForRoom(50);

HeadProblem Ended() { return {0, ""}; }

HeadProblem NoRoom() { return {503, "the door holds too many bytes of request bodies; try again"}; }

}  // namespace

RequestReader::RequestReader(Shard& shard, Client& client)
    : shard_(shard), client_(client), limits_(shard.shared.options.limits) {}

std::string_view RequestReader::Here() const {
  const auto data = client_.in().data();
  return {static_cast<const char*>(data.data()), data.size()};
}

void RequestReader::Begin() {
  ForgetBody();
  searched_ = 0;
  began_ = client_.in().size() > 0;
  client_.link().ExpireIn(began_ ? limits_.head_ms : client_.IdleMs());
}

std::optional<std::variant<RequestHead, HeadProblem>> RequestReader::TakeHead() {
  // RFC 9112 §2.2: empty lines before a request are no part of it.
  while (searched_ == 0 && Here().starts_with(kLineEnd)) client_.in().consume(kLineEnd.size());
  const std::string_view raw = Here();
  const size_t end = raw.find(kHeadEnd, searched_);
  if (end != std::string_view::npos) {
    client_.link().NeverExpire();
    head_bytes_ = end + kHeadEnd.size();
    return ReadHead(raw.substr(0, head_bytes_), limits_.head);
  }
  if (raw.size() > limits_.head.bytes) return HeadProblem{431, "the request head is too large"};
  searched_ = raw.size() < kHeadEnd.size() ? 0 : raw.size() - kHeadEnd.size();
  return std::nullopt;
}

bool RequestReader::Took(const Transferred& read) {
  if (!client_.Took(read)) return false;
  if (!std::exchange(began_, true)) client_.link().ExpireIn(limits_.head_ms);  // for all of it
  return true;
}

bool RequestReader::TakeBody(const RequestHead& head, std::string_view* body, BodyLease* lease) {
  const uint64_t length = head.content_length.value_or(0);
  if (head.chunked || Here().size() - head_bytes_ < length || length > limits_.body_bytes) {
    return false;
  }
  client_.in().consume(head_bytes_);
  body_bytes_ = length;
  *body = Here().substr(0, length);
  lease->Resize(length);
  return true;
}

Task<std::optional<HeadProblem>> RequestReader::ReadBody(const RequestHead& head,
                                                         std::string_view* body, BodyLease* lease) {
  continue_due_ = head.expects_continue;
  has_tensors_ = CarriesTensors(head.method, head.path);
  return head.chunked ? ReadChunked(body, lease)
                      : ReadSized(head.content_length.value_or(0), body, lease);
}

void RequestReader::ForgetBody() {
  beast::flat_buffer& in = client_.in();
  in.consume(std::exchange(body_bytes_, 0));
  parser_.reset();
  if (in.capacity() > kKeptBytes) in.shrink_to_fit();
}

// Until all of it fits, so that none waits for room with half of it. What the client sends meanwhile
// waits in its socket. A door that drains ends the calls before it, and then this one.
Task<bool> RequestReader::AwaitRoom(size_t bytes, BodyLease* lease) {
  const int64_t until_ms = NowMs() + limits_.call_ms;
  Timer timer(shard_.io.get_executor());
  bool held = lease->HoldTensors(shard_.shared, bytes);
  while (!held && NowMs() < until_ms) {
    timer.expires_after(kLookForRoom);
    auto [ignored] = co_await timer.async_wait(kAwait);
    (void)ignored;
    if (HasHungUp(client_.link().socket().native_handle())) client_.Leave();
    if (client_.left()) break;
    held = lease->HoldTensors(shard_.shared, bytes);
  }
  co_return held;
}

// The framing was read with the head: what follows it are the body's bytes.
Task<RequestReader::Problem> RequestReader::ReadSized(size_t length, std::string_view* body,
                                                      BodyLease* lease) {
  if (length > MostBytes()) co_return TooLarge(length);
  if (has_tensors_) {
    const bool held = co_await AwaitRoom(length, lease);
    if (!held) co_return client_.left() ? Ended() : NoRoom();
  }
  client_.in().consume(head_bytes_);
  for (;;) {
    const size_t here = Here().size();
    const bool room = has_tensors_ || lease->Resize(std::min(here, length));
    if (here >= length) break;
    if (!room) co_return NoRoom();
    const bool more = co_await ReadMoreOfBody(std::min(length - here, std::max(here, kRoomAtOnce)));
    if (!more) co_return Ended();
  }
  body_bytes_ = length;
  *body = Here().substr(0, length);
  co_return std::nullopt;
}

Task<RequestReader::Problem> RequestReader::ReadChunked(std::string_view* body, BodyLease* lease) {
  beast::flat_buffer& in = client_.in();
  parser_.emplace();
  parser_->eager(true);
  parser_->header_limit(static_cast<uint32_t>(limits_.head.bytes));
  // Nobody knows how much will come: of an adapter, too, no more than of other bodies.
  parser_->body_limit(limits_.body_bytes);
  for (;;) {
    ErrorCode error;
    if (in.size() > 0) in.consume(parser_->put(in.data(), error));
    const bool room = lease->Resize(parser_->get().body().size());
    if (parser_->is_done()) break;
    if (error == http::error::body_limit) co_return TooLarge(std::nullopt);
    if ((error && error != http::error::need_more) || in.size() > limits_.head.bytes) {
      co_return HeadProblem{400, "the body's framing is not HTTP/1.1: " + error.message()};
    }
    if (!room) co_return NoRoom();
    const bool more = co_await ReadMoreOfBody(kReadChunkBytes);
    if (!more) co_return Ended();
  }
  *body = parser_->get().body();
  co_return std::nullopt;
}

Task<bool> RequestReader::ReadMoreOfBody(size_t room) {
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

size_t RequestReader::MostBytes() const {
  return has_tensors_ ? limits_.tensors_bytes : limits_.body_bytes;
}

HeadProblem RequestReader::TooLarge(std::optional<size_t> length) const {
  const std::string most = std::to_string(length ? MostBytes() : limits_.body_bytes);
  std::string why = length ? "the body has " + std::to_string(*length) + " bytes, more than " + most
                           : "the body is larger than " + most + " bytes";
  if (has_tensors_) {
    why += length
               ? "; the proxy's --door-tensors-bytes allows more, with four times the memory; or "
                 "name a directory to /load_lora_adapter, or publish the version"
               : "; send it with a Content-Length, not in chunks";
  } else {
    why += "; the proxy's --door-body-bytes allows more";
  }
  return {413, std::move(why)};
}

}  // namespace lorry::door
