#include "services/engine_proxy/door/answer.h"

#include <openssl/crypto.h>

#include <algorithm>
#include <utility>

#include "lib/base/strings.h"
#include "services/engine_proxy/door/heads.h"
#include "services/engine_proxy/door/reply.h"

namespace lorry::door {
namespace {

constexpr std::string_view kJson = "application/json";

// Takes the same time wherever the two differ.
bool IsSame(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace

Refused WhyNoReply(CallResult result, std::string_view problem) {
  switch (result) {
    case CallResult::kUnreachable:
      return {503, "ENGINE_UNREACHABLE", "the engine takes no connection, or no request on it", 2};
    case CallResult::kNoSockets:
      return {503, "DOOR_OUT_OF_SOCKETS",
              "the door's host has no descriptor or port left for a connection to the engine", 1};
    case CallResult::kSilent:
      return {504, "ENGINE_TIMEOUT",
              "the engine sent nothing for as long as --door-engine-silence-ms allows"};
    case CallResult::kInvalid:
      return {502, "ENGINE_REPLY_INVALID",
              "the engine's reply cannot be read: " + std::string(problem)};
    case CallResult::kBroken:
    case CallResult::kOk:
      break;
  }
  return {502, "ENGINE_BROKE_OFF", "the engine closed the connection without a whole reply"};
}

Task<bool> Answer(Exchange& x, int status, std::string_view content_type, std::string body,
                  std::string extra_headers) {
  const bool keep = x.KeepAlive();
  x.record.status = status;
  std::string head;
  AppendStatusLine(status, &head);
  AppendField("Content-Type", content_type, &head);
  AppendField("Content-Length", std::to_string(body.size()), &head);
  AppendField("Connection", keep ? "keep-alive" : "close", &head);
  AppendSource(x, &head);
  head += extra_headers;
  head += "\r\n";
  const std::string_view sent_body = x.head.method == "HEAD" ? std::string_view() : body;
  const bool sent = co_await x.client.Write(head, sent_body);
  co_return (sent && keep);
}

Task<bool> PassOn(Exchange& x, int status, std::string_view content_type, std::string body) {
  if (HasLostName(x, status, body)) {
    Refused why = NameLost();
    co_return co_await Refuse(x, std::move(why));
  }
  co_return co_await Answer(x, status, content_type, std::move(body));
}

bool MayHaveLostName(const Exchange& x, int status) {
  const bool is_base = x.resolved.empty() || x.resolved.front().name.empty();
  if (is_base) return false;
  return status == (x.kind == fleet::EngineKind::kSglang ? 400 : 404);
}

// vLLM's server has no other 404 for a route that it has. SGLang's is one 400 of many (0.5.23).
bool HasLostName(const Exchange& x, int status, std::string_view body) {
  if (!MayHaveLostName(x, status)) return false;
  if (x.kind != fleet::EngineKind::kSglang)
    return body.find("\"NotFoundError\"") != std::string_view::npos;
  return std::any_of(x.resolved.begin(), x.resolved.end(), [&](const Resolved& one) {
    return body.find("never been loaded: " + one.name.value) != std::string_view::npos;
  });
}

Refused NameLost() {
  return {503, "ENGINE_RESTARTED",
          "the engine was started again and does not have this version back yet", 1};
}

Task<bool> Refuse(Exchange& x, Refused refused) {
  x.record.reason = refused.reason;
  if (DoorObserver* observer = x.shard.shared.options.observer) {
    observer->OnRefused(refused.reason);
  }
  co_return co_await Answer(x, refused.status, kJson, ErrorBody(x.kind, x.head.path, refused),
                            RefusalFields(refused));
}

Refused ReplyTooLarge(size_t limit) {
  return {400, "REPLY_TOO_LARGE",
          "the engine's reply is larger than --door-split-reply-bytes lets the door hold (" +
              std::to_string(limit) +
              "), and would be again; ask for fewer prompts, tokens or log-probabilities at once"};
}

Refused NoRoomForReply() {
  return {503, "DOOR_FULL",
          "bodies and replies together are larger than --door-all-bodies-bytes lets the door hold",
          1};
}

Refused NoEngine() { return {503, "ENGINE_UNREACHABLE", "no engine answers behind this door", 2}; }

std::optional<Refused> LacksKey(const Exchange& x, const std::string* other) {
  const std::string& key = x.facts->control_authorization;
  const std::string_view shown = x.head.Get("authorization");
  if (key.empty() || IsSame(shown, key) || (other != nullptr && IsSame(shown, *other)))
    return std::nullopt;
  return Refused{401, "UNAUTHENTICATED", "this call needs the engine's own key"};
}

Refused NotRouted(const Exchange& x) { return {x.route.status, "ROUTE_REFUSED", x.route.message}; }

Task<bool> RefuseInvalid(Exchange& x, absl::Status why) {
  Refused refused{400, "REQUEST_INVALID", std::string(ToStd(why.message()))};
  co_return co_await Refuse(x, std::move(refused));
}

Task<bool> RefuseCall(Exchange& x, CallResult result, std::string problem) {
  if (x.client.left()) co_return false;
  Refused why = WhyNoReply(result, problem);
  co_return co_await Refuse(x, std::move(why));
}

Task<bool> Reject(Exchange& x, Refused why) {
  x.head.keep_alive = false;
  x.kind = x.shard.Table().engine;
  co_await Refuse(x, std::move(why));
  x.ForgetBody();
  co_await x.client.LingeringClose();
  co_return false;
}

}  // namespace lorry::door
