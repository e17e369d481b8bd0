// Session: relaying one reply from the engine, piece by piece.
#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <cstdio>
#include <utility>

#include "services/engine_proxy/door/session.h"

namespace lorry::door {
namespace {

// A reply with a known length that fits here leaves in one write with its head.
constexpr uint64_t kOneWriteBytes = 16 * 1024;
// Most heads that the door writes fit at once.
constexpr size_t kHeadRoom = 1024;

std::string ChunkHead(size_t size) {
  char text[24];
  std::snprintf(text, sizeof(text), "%zx\r\n", size);
  return text;
}

bool IsEventStream(std::string_view content_type) {
  return EqualsIgnoreCase(content_type.substr(0, content_type.find(';')), "text/event-stream");
}

}  // namespace

// Our own framing and identity, the client's other fields. Compression would hide ids, and buffers
// tokens.
std::string Session::EngineHead(const Exchange& x, size_t body_size) const {
  std::string head;
  head.reserve(kHeadRoom);
  head.append(x.head.method).append(" ").append(x.head.path).append(x.head.query);
  head.append(" HTTP/1.1\r\n");
  AppendField("Host", shard_.shared.engine_authority, &head);
  AppendForwardable(x.head.fields, {"host", "content-length", "expect", "accept-encoding", "via"},
                    &head);
  AppendField("Via", "1.1 lorry", &head);
  if (body_size > 0 || x.head.method == "POST" || x.head.method == "PUT") {
    AppendField("Content-Length", std::to_string(body_size), &head);
  }
  head += "\r\n";
  return head;
}

std::string Session::ReplyHead(Exchange& x, UpstreamCall& call, bool keep, bool* chunked) const {
  std::string head;
  head.reserve(kHeadRoom);
  head += StatusLine(call.status());
  const std::vector<HeaderField> fields = call.Fields();
  std::vector<std::string_view> drop = {"content-length", "x-accel-buffering"};
  for (const HeaderField& field : fields) {
    if (EqualsIgnoreCase(std::string_view(field.name).substr(0, 8), "x-lorry-")) {
      drop.push_back(field.name);
    }
  }
  AppendForwardable(fields, drop, &head);
  head += LorryHeaders(x.resolved, x.lag_known, x.record.request_id);
  if (IsEventStream(call.Field("content-type"))) AppendField("X-Accel-Buffering", "no", &head);
  *chunked = false;
  if (call.status() != 204 && call.status() != 304) {
    if (const auto length = call.content_length(); length && !x.restorer) {
      AppendField("Content-Length", std::to_string(*length), &head);
    } else if (x.head.method != "HEAD" && x.head.http11) {
      AppendField("Transfer-Encoding", "chunked", &head);
      *chunked = true;
    }
  }
  AppendField("Connection", keep ? "keep-alive" : "close", &head);
  head += "\r\n";
  return head;
}

void Session::OnFirstByte(Exchange& x, bool streaming) {
  if (x.record.first_byte_ms >= 0) return;
  x.record.first_byte_ms = NowMs() - x.began_ms;
  if (DoorObserver* observer = shard_.shared.options.observer) {
    observer->OnFirstByte(static_cast<double>(x.record.first_byte_ms));
  }
  if (!x.live || !streaming) return;
  x.live->answered = true;
  if (x.live->abort_wanted) AbortOnce(x);
}

void Session::AbortOnce(Exchange& x) {
  if (std::exchange(x.abort_sent, true)) return;
  asio::co_spawn(shard_.io, SendAbort(x.live->engine_ids, x.facts->control_authorization),
                 asio::detached);
}

Task<bool> Session::Relay(Exchange& x, std::string body) {
  UpstreamCall call(shard_.pool, limits_);
  x.call = &call;
  std::string request_head = EngineHead(x, body.size());
  const CallResult started =
      co_await call.Start(std::move(request_head), body, x.head.method == "HEAD");
  std::string().swap(body);
  shard_.shared.body_bytes -= std::exchange(body_lease_, 0);
  if (started != CallResult::kOk) {
    x.call = nullptr;
    co_return co_await RefuseCall(x, started);
  }
  const bool keep = KeepAlive(x);
  bool chunked = false;
  std::string head = ReplyHead(x, call, keep, &chunked);
  const bool framed = chunked || !call.has_body() || call.content_length().has_value();
  x.record.status = call.status();
  const bool whole = co_await RelayBody(x, call, std::move(head), chunked);
  x.call = nullptr;
  call.Finish();
  co_return whole&& keep&& framed;
}

// True when the client got a whole reply. A client that left does not end the loop on SGLang: the
// engine is read to the end, because it forgets to release the adapter of a request whose
// connection breaks (sglang#36333).
Task<bool> Session::RelayBody(Exchange& x, UpstreamCall& call, std::string head, bool chunked) {
  const bool streaming = IsEventStream(call.Field("content-type"));
  const bool with_head = call.HasBuffered() || !call.has_body() ||
                         call.content_length().value_or(kOneWriteBytes + 1) <= kOneWriteBytes;
  if (!with_head) {
    co_await WriteClient(head, {}, {});
    head.clear();
  }
  for (;;) {
    const UpstreamCall::Piece piece = co_await call.Read();
    if (piece.broken) {
      if (x.record.reason.empty() && !client_left_) x.record.reason = "ENGINE_BROKE_OFF";
      if (call.timed_out() && x.live && x.live->answered) AbortOnce(x);
      co_return false;  // the connection closes in the middle of the framing: the client sees that
                        // it is cut
    }
    if (!piece.data.empty() || piece.end) OnFirstByte(x, streaming && !piece.data.empty());
    std::string restored;
    std::string_view data = piece.data;
    if (x.restorer) {
      restored = x.restorer->Feed(piece.data, piece.end);
      data = restored;
    }
    std::string_view tail;
    if (chunked) {
      if (!data.empty()) head += ChunkHead(data.size());
      tail = data.empty() ? (piece.end ? "0\r\n\r\n" : "") : (piece.end ? "\r\n0\r\n\r\n" : "\r\n");
    }
    if (!head.empty() || !data.empty() || !tail.empty()) {
      const bool written = co_await WriteClient(head, data, tail);
      if (!written && !x.live) co_return false;
    }
    head.clear();
    if (piece.end) co_return !client_left_;
  }
}

}  // namespace lorry::door
