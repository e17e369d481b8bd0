#include "services/engine_proxy/door/heads.h"

#include <vector>

#include "services/engine_proxy/door/reply.h"

namespace lorry::door {
namespace {

// Most heads that the door writes fit at once.
constexpr size_t kHeadRoom = 1024;

}  // namespace

bool IsEventStream(std::string_view content_type) {
  return EqualsIgnoreCase(content_type.substr(0, content_type.find(';')), "text/event-stream");
}

// Compression would hide ids, and buffers tokens.
std::string EngineHead(const Exchange& x, size_t body_size) {
  std::string head;
  head.reserve(kHeadRoom);
  head.append(x.head.method).append(" ").append(x.head.path).append(x.head.query);
  head.append(" HTTP/1.1\r\n");
  AppendField("Host", x.shard.shared.engine_authority, &head);
  AppendForwardable(x.head.fields, {"host", "content-length", "expect", "accept-encoding", "via"},
                    &head);
  AppendField("Via", "1.1 lorry", &head);
  if (body_size > 0 || x.head.method == "POST" || x.head.method == "PUT") {
    AppendField("Content-Length", std::to_string(body_size), &head);
  }
  head += "\r\n";
  return head;
}

ReplyHead MakeReplyHead(const Exchange& x, const UpstreamCall& call, bool keep) {
  ReplyHead reply;
  std::string& head = reply.text;
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
  if (call.status() != 204 && call.status() != 304) {
    if (const auto length = call.content_length(); length && !x.restorer) {
      AppendField("Content-Length", std::to_string(*length), &head);
    } else if (x.head.method != "HEAD" && x.head.http11) {
      AppendField("Transfer-Encoding", "chunked", &head);
      reply.chunked = true;
    }
  }
  AppendField("Connection", keep ? "keep-alive" : "close", &head);
  head += "\r\n";
  return reply;
}

}  // namespace lorry::door
