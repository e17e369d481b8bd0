#include "services/engine_proxy/door/relay.h"

#include <utility>

#include "services/engine_proxy/door/answer.h"
#include "services/engine_proxy/door/fetch.h"
#include "services/engine_proxy/door/heads.h"

namespace lorry::door {
namespace {

// A reply with a known length that fits here leaves in one write with its head.
constexpr uint64_t kOneWriteBytes = 16 * 1024;

constexpr std::string_view kChunkEnd = "\r\n";
constexpr std::string_view kLastChunk = "0\r\n\r\n";

}  // namespace

Relay::Relay(Exchange& x) : x_(x), call_(x.shard.pool, x.shard.shared.options.limits) {}

Task<bool> Relay::Run(std::span<const std::string_view> body) {
  const LeaveHook hook(x_.client, [this] { OnClientLeft(); });
  size_t body_bytes = 0;
  for (const std::string_view piece : body) body_bytes += piece.size();
  const std::string request_head = EngineHead(x_, body_bytes);
  std::vector<std::string_view> request = {request_head};
  request.insert(request.end(), body.begin(), body.end());
  CallResult started = co_await call_.Start(request, x_.head.method == "HEAD");
  x_.ForgetBody();
  if (started == CallResult::kSilent && x_.live) {
    co_await BreakOff(started);
    started = co_await call_.WaitForHead();
  }
  if (started != CallResult::kOk) co_return co_await RefuseCall(x_, started);
  co_return co_await RelayReply();
}

// Names that are restored change a reply's length: of a short one all is read before its head says
// how long it is. A longer one goes out in chunks, as it comes.
Task<bool> Relay::RelayReply() {
  const bool keep = x_.KeepAlive();
  const auto length = call_.content_length();
  const bool is_short = length.value_or(kOneWriteBytes + 1) <= kOneWriteBytes;
  if (x_.live && IsEventStream(call_.reply().Get("content-type"))) watch_.emplace(x_.live, 0);
  gathers_ = x_.restorer && is_short && call_.has_body();
  if (!gathers_) BeginReply(keep, x_.restorer ? std::nullopt : length);
  const bool framed = gathers_ || chunked_ || !call_.has_body() || length.has_value();
  if (!gathers_ && !is_short && call_.has_body() && !call_.HasBuffered()) {
    co_await x_.client.Write(head_);
    head_.clear();
  }
  for (;;) {
    const UpstreamCall::Piece piece = co_await call_.Read();
    if (piece.result != CallResult::kOk) {
      co_await BreakOff(piece.result);
      if (piece.result != CallResult::kSilent || !x_.live) co_return false;
      call_.WaitForEver();
      continue;
    }
    OnPiece(piece);
    if (x_.restorer) Restore(piece);
    if (gathers_ && !piece.end) continue;
    if (gathers_) BeginReply(keep, restored_.size());
    const bool written = co_await x_.client.Write(Framed(piece));
    head_.clear();
    restored_.clear();
    if (!written && !x_.live) co_return false;
    if (piece.end) break;
  }
  call_.Finish();
  co_return !x_.client.left() && keep && framed;
}

void Relay::BeginReply(bool keep, std::optional<uint64_t> length) {
  ReplyHead head = MakeReplyHead(x_, call_, keep, length);
  head_ = std::move(head.text);
  chunked_ = head.chunked;
  if (x_.record.status == 0) x_.record.status = call_.reply().status();
}

void Relay::Restore(const UpstreamCall::Piece& piece) {
  for (const asio::const_buffer& data : piece.data) {
    restored_ += x_.restorer->Feed({static_cast<const char*>(data.data()), data.size()}, false);
  }
  if (piece.end) restored_ += x_.restorer->Feed({}, true);
}

std::span<asio::const_buffer> Relay::Framed(const UpstreamCall::Piece& piece) {
  size_t bytes = restored_.size();
  if (!x_.restorer) {
    for (const asio::const_buffer& data : piece.data) bytes += data.size();
  }
  out_.clear();
  if (chunked_ && bytes > 0) AppendChunkHead(bytes, &head_);
  out_.push_back(asio::buffer(head_));
  if (x_.restorer) {
    out_.push_back(asio::buffer(restored_));
  } else {
    out_.insert(out_.end(), piece.data.begin(), piece.data.end());
  }
  if (chunked_ && bytes > 0) out_.push_back(asio::buffer(kChunkEnd));
  if (chunked_ && piece.end) out_.push_back(asio::buffer(kLastChunk));
  return out_;
}

// Where the reply's head is out already, the connection closes in the middle of the framing: the
// client sees that it is cut.
Task<bool> Relay::BreakOff(CallResult why) {
  const bool told = x_.record.status != 0 && head_.empty();
  x_.head.keep_alive = false;
  if (!told) {
    co_await RefuseCall(x_, why);
  } else if (x_.record.reason.empty() && !x_.client.left()) {
    x_.record.reason = WhyNoReply(why).reason;
  }
  if (why == CallResult::kSilent && x_.live) x_.client.Leave();
  co_return false;
}

void Relay::OnPiece(const UpstreamCall::Piece& piece) {
  x_.OnBytes();
  if (!watch_) return;
  for (const asio::const_buffer& data : piece.data) {
    SpawnAborts(x_.shard, watch_->Heard({static_cast<const char*>(data.data()), data.size()}),
                *x_.facts);
  }
}

void Relay::OnClientLeft() {
  if (!x_.live) return call_.Cancel();
  SpawnAborts(x_.shard, x_.live->WantAbort(), *x_.facts);
}

}  // namespace lorry::door
