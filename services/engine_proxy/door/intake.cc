#include "services/engine_proxy/door/intake.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "services/engine_proxy/door/admit.h"
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
// How often a call that carries tensors looks whether there is room for it, and, while nothing of it
// comes, whether the door drains.
constexpr std::chrono::milliseconds kLookForRoom(50);
constexpr int64_t kLookMs = 250;
// Tensors that come more slowly keep those of others out for too long: 1 MiB a second.
constexpr size_t kLeastBytesPerMs = (1u << 20) / 1'000;

Refused Ended() { return {0, "", ""}; }

Refused NoRoom() {
  return {503, "DOOR_FULL", "the door holds too many bytes of request bodies; try again", 1};
}

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

Task<std::optional<Refused>> RequestReader::ReadBody(const RequestHead& head,
                                                     std::string_view* body, BodyLease* lease) {
  continue_due_ = head.expects_continue;
  has_tensors_ = false;
  return head.chunked ? ReadChunked(body, lease)
                      : ReadSized(head.content_length.value_or(0), body, lease);
}

Task<std::optional<Refused>> RequestReader::ReadTensors(const RequestHead& head, std::string* body,
                                                        BodyLease* lease) {
  continue_due_ = head.expects_continue;
  has_tensors_ = true;
  if (head.content_length) co_return co_await ReadSizedTensors(*head.content_length, body, lease);
  std::string_view read;
  Problem problem = co_await ReadChunked(&read, lease);
  if (!problem) *body = std::move(parser_->get().body());
  co_return problem;
}

void RequestReader::ForgetBody() {
  beast::flat_buffer& in = client_.in();
  in.consume(std::exchange(body_bytes_, 0));
  parser_.reset();
  if (in.capacity() > kKeptBytes) in.shrink_to_fit();
}

// Until all of it fits, so that none waits for room with half of it. What the client sends meanwhile
// waits in its socket.
Task<RequestReader::Problem> RequestReader::AwaitRoom(size_t bytes, BodyLease* lease) {
  const int64_t until_ms = NowMs() + limits_.call_ms;
  Timer timer(shard_.io.get_executor());
  while (!lease->HoldTensors(shard_.shared, bytes)) {
    if (NowMs() >= until_ms) co_return NoRoom();
    timer.expires_after(kLookForRoom);
    auto [ignored] = co_await timer.async_wait(kAwait);
    (void)ignored;
    if (HasHungUp(client_.link().socket().native_handle())) client_.Leave();
    if (client_.left()) co_return Ended();
    if (shard_.shared.draining) co_return Draining();
  }
  co_return std::nullopt;
}

// The framing was read with the head: what follows it are the body's bytes.
Task<RequestReader::Problem> RequestReader::ReadSized(size_t length, std::string_view* body,
                                                      BodyLease* lease) {
  if (length > MostBytes()) co_return TooLarge(length);
  client_.in().consume(head_bytes_);
  for (;;) {
    const size_t here = Here().size();
    const bool room = lease->Resize(std::min(here, length));
    if (here >= length) break;
    if (!room) co_return NoRoom();
    const bool more = co_await ReadMoreOfBody(std::min(length - here, std::max(here, kRoomAtOnce)));
    if (!more) co_return Ended();
  }
  body_bytes_ = length;
  *body = Here().substr(0, length);
  co_return std::nullopt;
}

Task<RequestReader::Problem> RequestReader::ReadSizedTensors(size_t length, std::string* body,
                                                             BodyLease* lease) {
  if (length > MostBytes()) co_return TooLarge(length);
  Problem problem = co_await AwaitRoom(length, lease);
  if (problem) co_return problem;
  client_.in().consume(head_bytes_);
  const int64_t until_ms =
      NowMs() + limits_.body_ms + static_cast<int64_t>(length / kLeastBytesPerMs);
  body->reserve(length);  // which the lease holds, and which takes memory as it is written to
  *body = Here().substr(0, length);
  size_t here = body->size();
  client_.in().consume(here);
  while (here < length) {
    if (here == body->size()) body->resize(std::min(length, here + kRoomAtOnce));
    problem = co_await ReadMoreTensors(asio::buffer(body->data() + here, body->size() - here),
                                       until_ms, &here);
    if (problem) co_return problem;
  }
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
      co_return Refused{400, "REQUEST_INVALID",
                        "the body's framing is not HTTP/1.1: " + error.message()};
    }
    if (!room) co_return NoRoom();
    const bool more = co_await ReadMoreOfBody(kReadChunkBytes);
    if (!more) co_return Ended();
  }
  *body = parser_->get().body();
  co_return std::nullopt;
}

Task<bool> RequestReader::ReadMoreOfBody(size_t room) {
  if (continue_due_) {
    const bool sent = co_await SendContinue();
    if (!sent) co_return false;
  }
  client_.link().ExpireIn(limits_.body_ms);
  const Transferred read = co_await client_.ReadMore(room);
  client_.link().NeverExpire();
  co_return client_.Took(read);
}

// A door that drains would not take the call any more, so that it need not wait for the rest.
Task<RequestReader::Problem> RequestReader::ReadMoreTensors(asio::mutable_buffer room,
                                                            int64_t until_ms, size_t* read) {
  if (continue_due_) {
    const bool sent = co_await SendContinue();
    if (!sent) co_return Ended();
  }
  TimedSocket& link = client_.link();
  until_ms = std::min(until_ms, NowMs() + limits_.body_ms);
  while (NowMs() < until_ms) {
    if (shard_.shared.draining) co_return Draining();
    link.ExpireIn(kLookMs);
    const auto [error, n] = co_await link.Read(room);
    link.NeverExpire();
    link.Took();
    *read += n;
    if (!error) co_return std::nullopt;
    if (!link.expired()) co_return Ended();
  }
  co_return Refused{408, "REQUEST_INVALID",
                    "the tensors came too slowly; beyond --door-body-ms they must come at 1 MiB a "
                    "second, as others wait for the room that they take"};
}

Task<bool> RequestReader::SendContinue() {
  continue_due_ = false;
  const bool sent = co_await client_.Write("HTTP/1.1 100 Continue\r\n\r\n");
  client_.ForgetWritten();  // no part of the reply
  co_return sent;
}

size_t RequestReader::MostBytes() const {
  return has_tensors_ ? limits_.tensors_bytes : limits_.body_bytes;
}

Refused RequestReader::TooLarge(std::optional<size_t> length) const {
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
  return {413, "REQUEST_INVALID", std::move(why)};
}

}  // namespace lorry::door
