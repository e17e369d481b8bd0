#include "services/engine_proxy/door/heads.h"

#include <charconv>
#include <iterator>
#include <span>

#include "services/engine_proxy/door/reply.h"

namespace lorry::door {
namespace {

// Most heads that the door writes fit at once. What malloc keeps at hand ends at 1,032 bytes.
constexpr size_t kHeadRoom = 960;

// Compression would hide ids, and buffers tokens. X-Override-* would undo what the door puts into the
// body: SGLang 0.5.23 lets X-Override-Rid beat `rid`. The first one is dropped where the door has
// another.
constexpr std::string_view kNotForEngines[] = {
    "x-request-id",    "host", "content-length",  "expect",
    "accept-encoding", "via",  "x-forwarded-for", "x-override-*"};
constexpr FieldNames kDroppedWithId(kNotForEngines);
constexpr FieldNames kDropped{{kNotForEngines + 1, std::size(kNotForEngines) - 1}};
constexpr std::string_view kNotForClients[] = {"content-length", "x-accel-buffering", "x-lorry-*"};
constexpr FieldNames kDroppedOfReplies(kNotForClients);

// A list that each proxy on the way adds itself to.
void AppendListed(std::string_view name, std::string listed, std::string_view us,
                  std::string* head) {
  if (!listed.empty()) listed += ", ";
  AppendField(name, listed.append(us), head);
}

}  // namespace

bool IsEventStream(std::string_view content_type) {
  return EqualsIgnoreCase(content_type.substr(0, content_type.find(';')), "text/event-stream");
}

bool HasBegunStream(const ReplyParser& reply) {
  return reply.status() == 200 && IsEventStream(reply.Get("content-type"));
}

void AppendSource(const Exchange& x, std::string* head) {
  AppendLorryHeaders(x.resolved, x.lag_known, x.record.request_id, head);
  if (x.in_flight_why.empty()) return;
  AppendField("X-Lorry-In-Flight", "finish_on_old; " + x.in_flight_why, head);
}

std::string EngineHead(const Exchange& x, size_t body_size) {
  std::string head;
  head.reserve(kHeadRoom);
  head.append(x.head.method).append(" ").append(x.head.path).append(x.head.query);
  head.append(" HTTP/1.1\r\n");
  AppendField("Host", x.shard.shared.engine_authority, &head);
  AppendForwardable(x.head.fields, x.engine_id.empty() ? kDropped : kDroppedWithId, &head);
  if (!x.engine_id.empty()) AppendField("X-Request-Id", x.engine_id, &head);
  AppendListed("X-Forwarded-For", x.head.GetAll("x-forwarded-for"), x.client.address(), &head);
  AppendListed("Via", x.head.GetAll("via"), x.head.http11 ? "1.1 lorry" : "1.0 lorry", &head);
  if (body_size > 0 || x.head.method == "POST" || x.head.method == "PUT") {
    AppendField("Content-Length", std::to_string(body_size), &head);
  }
  head += "\r\n";
  return head;
}

bool AppendReplyHead(const Exchange& x, const UpstreamCall& call, bool keep,
                     std::optional<uint64_t> length, std::string* head) {
  bool chunked = false;
  head->reserve(kHeadRoom);
  const int status = call.reply().status();
  AppendStatusLine(status, head);
  AppendForwardable(call.reply().fields(), kDroppedOfReplies, head);
  AppendSource(x, head);
  if (IsEventStream(call.reply().Get("content-type"))) {
    AppendField("X-Accel-Buffering", "no", head);
  }
  if (status != 204 && status != 304) {
    if (length) {
      AppendField("Content-Length", std::to_string(*length), head);
    } else if (x.head.method != "HEAD" && x.head.http11) {
      AppendField("Transfer-Encoding", "chunked", head);
      chunked = true;
    }
  }
  AppendField("Connection", keep ? "keep-alive" : "close", head);
  head->append("\r\n");
  return chunked;
}

std::string_view AppendChunk(size_t size, bool last, std::string* before) {
  constexpr std::string_view kBehindLast = "\r\n0\r\n\r\n";
  constexpr std::string_view kBehind = kBehindLast.substr(0, 2);
  constexpr std::string_view kEnd = kBehindLast.substr(2);
  if (size == 0) return last ? kEnd : std::string_view();  // an empty chunk would end the body
  char text[24];
  char* const end = std::to_chars(text, text + sizeof(text), size, 16).ptr;
  before->append(text, static_cast<size_t>(end - text)).append("\r\n");
  return last ? kBehindLast : kBehind;
}

}  // namespace lorry::door
