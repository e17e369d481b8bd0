#include "services/engine_proxy/door/relay.h"

#include <utility>

#include "absl/container/inlined_vector.h"
#include "services/engine_proxy/door/answer.h"
#include "services/engine_proxy/door/fetch.h"
#include "services/engine_proxy/door/heads.h"
#include "services/engine_proxy/door/upstream.h"

namespace lorry::door {
namespace {

// A reply with a known length that fits here leaves in one write with its head.
constexpr uint64_t kOneWriteBytes = 16 * 1024;

struct Relay {
  explicit Relay(Exchange& its_x) : x(its_x), call(x.shard.pool, x.shard.shared.options.limits) {}

  Task<CallResult> Start();
  // The head of the engine's reply is here.
  void OnHead();
  // Makes the head; without a length the body is in chunks, or ends with the connection.
  void BeginReply(std::optional<uint64_t> length);
  // True while nothing of a long reply's body is here.
  bool SendsHeadFirst() const { return is_long && !head.empty() && !call.HasBuffered(); }
  void OnPiece(const UpstreamCall::Piece& piece);
  // The client is about to be told something of the reply.
  void OnWrite() {
    if (!framed) x.client.BeginUnframed();
  }
  // What goes out for `piece`, with the head before it and the framing around it.
  std::span<asio::const_buffer> Framed(const UpstreamCall::Piece& piece);
  // Why no more comes of the reply.
  Task<void> BreakOff(CallResult why);
  void OnClientLeft();

  Exchange& x;
  UpstreamCall call;
  std::string head;      // to the engine, then to the client; until it is sent
  std::string restored;  // with the client's own names, or gathered, until it is sent
  absl::InlinedVector<asio::const_buffer, 6> out;
  std::optional<AnswerWatch> watch;  // of a stream of SGLang's
  bool keep = false;                 // what the client is told of its connection
  bool gathers = false;              // nothing is sent before the end
  bool lacks_name = false;           // the engine has said that it does not know the name
  bool is_long = false;              // the head need not wait for the body
  bool chunked = false;
  bool framed = false;  // the client can tell where the reply ends
};

Task<CallResult> Relay::Start() {
  const std::string_view whole = x.body;
  const std::span<const std::string_view> body =
      x.spliced ? x.spliced->pieces() : std::span(&whole, 1);
  size_t body_bytes = 0;
  for (const std::string_view piece : body) body_bytes += piece.size();
  head = EngineHead(x, body_bytes);
  out.reserve(body.size() + 1);
  out.push_back(asio::buffer(head));
  for (const std::string_view piece : body) out.emplace_back(piece.data(), piece.size());
  return call.Start(out, x.head.method == "HEAD");
}

// Names that are restored change a reply's length: of a short one all is read before its head says
// how long it is. A longer one goes out in chunks, as it comes.
void Relay::OnHead() {
  if (x.aborts_all && call.reply().status() == 200) ++x.shard.shared.aborts_taken;
  const auto length = call.content_length();
  const bool is_short = length.value_or(kOneWriteBytes + 1) <= kOneWriteBytes;
  if (x.live && IsEventStream(call.reply().Get("content-type"))) watch.emplace(x.live, 0);
  const bool may_lack_name = MayHaveLostName(x, call.reply().status());
  gathers = is_short && call.has_body() && (x.restorer || may_lack_name);
  is_long = !is_short && call.has_body();
  const std::optional<uint64_t> told = x.restorer ? std::nullopt : length;
  framed = gathers || x.head.http11 || !call.has_body() || told.has_value();
  keep = framed && x.KeepAlive();
  if (!gathers) BeginReply(told);
}

void Relay::BeginReply(std::optional<uint64_t> length) {
  chunked = AppendReplyHead(x, call, keep, length, &head);
  if (x.record.status == 0) x.record.status = call.reply().status();
}

void Relay::OnPiece(const UpstreamCall::Piece& piece) {
  // Errors, and the first events of /v1/responses, come from the engine's HTTP server alone.
  const bool may_be_the_servers = x.route.shape == BodyShape::kResponses && !piece.end;
  x.OnBytes(call.reply().status() == 200 && !may_be_the_servers);
  for (const asio::const_buffer& data : piece.data) {
    const std::string_view text(static_cast<const char*>(data.data()), data.size());
    if (watch) SpawnAborts(x.shard, watch->Heard(text), *x.facts);
    if (x.restorer) {
      x.restorer->Feed(text, false, &restored);
    } else if (gathers) {
      restored += text;
    }
  }
  if (!piece.end) return;
  if (x.restorer) x.restorer->Feed({}, true, &restored);
  lacks_name = gathers && HasLostName(x, call.reply().status(), restored);
  if (gathers && !lacks_name) BeginReply(restored.size());
}

std::span<asio::const_buffer> Relay::Framed(const UpstreamCall::Piece& piece) {
  size_t bytes = restored.size();
  const bool is_copied = x.restorer || gathers;
  if (!is_copied) {
    for (const asio::const_buffer& data : piece.data) bytes += data.size();
  }
  out.clear();
  std::string_view end;
  if (chunked) end = AppendChunk(bytes, piece.end, &head);
  out.push_back(asio::buffer(head));
  if (is_copied) {
    out.push_back(asio::buffer(restored));
  } else {
    out.insert(out.end(), piece.data.begin(), piece.data.end());
  }
  if (!end.empty()) out.push_back(asio::buffer(end));
  return out;
}

// Where the reply's head is out already, the connection closes in the middle of the framing: the
// client sees that it is cut. HTTP/1.0 has no chunks: without a length it sees a reset.
Task<void> Relay::BreakOff(CallResult why) {
  const bool told = x.record.status != 0 && head.empty();
  x.head.keep_alive = false;
  if (!told) {
    co_await RefuseCall(x, why, call.Problem(why));
  } else if (x.record.reason.empty() && !x.client.left()) {
    x.record.reason = WhyNoReply(why).reason;
  }
  if (told) x.client.BreakOff();
  if (why == CallResult::kSilent && x.live) x.client.Leave();
}

void Relay::OnClientLeft() {
  if (x.aborts_all) ++x.shard.shared.aborts_taken;  // nobody hears whether
  if (!x.live) return call.Cancel();
  SpawnAbortOfAll(x);
}

}  // namespace

Task<bool> RelayRequest(Exchange& x) {
  Relay relay(x);
  const LeaveHook hook(x.client, [&relay] { relay.OnClientLeft(); });
  CallResult started = co_await relay.Start();
  x.ForgetBody();
  relay.head.clear();
  if (started == CallResult::kSilent && x.live) {
    co_await relay.BreakOff(started);
    started = co_await relay.call.WaitForHead();
  }
  if (started != CallResult::kOk) {
    co_return co_await RefuseCall(x, started, relay.call.Problem(started));
  }
  relay.OnHead();
  for (;;) {
    std::optional<UpstreamCall::Piece> piece = relay.call.Next();
    if (!piece) {
      if (relay.SendsHeadFirst()) {
        relay.OnWrite();
        co_await x.client.Write(relay.head);
        relay.head.clear();
      }
      piece = co_await relay.call.Read();
    }
    if (piece->result != CallResult::kOk) {
      co_await relay.BreakOff(piece->result);
      if (piece->result != CallResult::kSilent || !x.live) co_return false;
      relay.call.WaitForEver();
      continue;
    }
    relay.OnPiece(*piece);
    if (relay.gathers && !piece->end) continue;
    if (relay.lacks_name) {
      relay.call.Finish();
      Refused why = NameLost();
      co_return co_await Refuse(x, std::move(why));
    }
    relay.OnWrite();
    std::span<asio::const_buffer> left = relay.Framed(*piece);
    bool written = x.client.WriteNow(&left);
    if (written && !left.empty()) written = co_await x.client.WriteRest(left);
    if (!written && !x.live) co_return false;
    relay.head.clear();
    relay.restored.clear();
    if (piece->end) break;
  }
  relay.call.Finish();
  co_return !x.client.left() && relay.keep;
}

}  // namespace lorry::door
