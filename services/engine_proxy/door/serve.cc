// Session: from a read request to an answer or a relay.
#include <charconv>
#include <utility>

#include "lib/base/error.h"
#include "lib/base/strings.h"
#include "services/engine_proxy/door/session.h"

namespace lorry::door {
namespace {

constexpr std::string_view kJson = "application/json";
// Control routes answer with a few hundred KiB at most (SGLang's /server_info).
constexpr size_t kControlReplyBytes = 4u << 20;

// X-Lorry-Min-Version: a version's number within the current run.
absl::StatusOr<std::optional<uint64_t>> MinVersion(const RequestHead& head) {
  const std::string_view text = head.Get("x-lorry-min-version");
  if (text.empty()) return std::optional<uint64_t>();
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    return Error(absl::StatusCode::kInvalidArgument, "REQUEST_INVALID",
                 "X-Lorry-Min-Version must be a version's number");
  }
  return std::optional<uint64_t>(value);
}

Refused Invalid(const absl::Status& status) {
  return {400, "REQUEST_INVALID", std::string(ToStd(status.message()))};
}

}  // namespace

Task<bool> Session::Serve(Exchange& x) {
  const bool read = co_await ReadRequestBody(x);
  if (!read) co_return false;
  const std::shared_ptr<const proxy::DoorTable> table = shard_.shared.router.table();
  x.kind = table->engine;
  x.facts = shard_.shared.facts.load();
  x.route =
      ChooseRoute(x.kind, x.head.method, x.head.path, shard_.shared.options.allow_unknown_routes);
  const bool no_engine = table->boot.empty() || x.kind == fleet::EngineKind::kUnknown;
  const Refused unreachable{503, "ENGINE_UNREACHABLE", "no engine answers behind this door", 2};
  if (x.route.action == RouteAction::kHealth) {
    const bool keep = KeepAlive(x);
    if (no_engine) co_return co_await Refuse(x, unreachable);
    co_return co_await Answer(x, 200, kJson, "", "", keep);
  }
  if (no_engine) co_return co_await Refuse(x, unreachable);
  switch (x.route.action) {
    case RouteAction::kRewrite:
      co_return co_await ServeRewritten(x);
    case RouteAction::kAbort:
      co_return co_await ServeAbort(x);
    case RouteAction::kModels:
    case RouteAction::kServerInfo:
      co_return co_await ServeFetched(x);
    case RouteAction::kPass: {
      WatchClient();
      std::string body = std::move(x.body);
      co_return co_await Relay(x, std::move(body));
    }
    case RouteAction::kHealth:
    case RouteAction::kRefuse:
      break;
  }
  {
    Refused why{x.route.status, "ROUTE_REFUSED", x.route.message};
    co_return co_await Refuse(x, std::move(why));
  }
}

Task<bool> Session::ServeRewritten(Exchange& x) {
  if (x.head.method == "HEAD") {
    Refused why{405, "ROUTE_REFUSED", "use POST"};
    co_return co_await Refuse(x, std::move(why));
  }
  if (!x.head.Get("content-encoding").empty()) {
    {
      Refused why{415, "REQUEST_INVALID", "compressed bodies cannot be read here; send plain JSON"};
      co_return co_await Refuse(x, std::move(why));
    }
  }
  const PaddedBody body(std::move(x.body));
  auto facts = ReadBody(x.kind, x.route.shape, *x.facts, body);
  if (!facts.ok()) co_return co_await Refuse(x, Invalid(facts.status()));
  auto min_version = MinVersion(x.head);
  if (!min_version.ok()) co_return co_await Refuse(x, Invalid(min_version.status()));
  const bool sglang = x.kind == fleet::EngineKind::kSglang;
  const bool split = sglang && x.facts->split_n && facts->n > 1;
  if (split && (facts->stream || facts->batch > 0 || facts->n > kMaxSplit)) {
    {
      Refused why{400, "N_UNSUPPORTED_ON_SGLANG",
                  "n > 1 unbalances this SGLang's adapter counters, so the door "
                  "splits it, for one prompt, without "
                  "stream and up to n = " +
                      std::to_string(kMaxSplit) + "; send single requests instead"};
      co_return co_await Refuse(x, std::move(why));
    }
  }
  x.record.asked = facts->adapters;
  WatchClient();
  const Ask ask{facts->adapters, *min_version};
  std::optional<Outcome> outcome = co_await Admit(x, ask);
  if (!outcome) co_return false;
  if (Refused* refused = std::get_if<Refused>(&*outcome)) co_return co_await Refuse(x, *refused);
  Admitted& admitted = std::get<Admitted>(*outcome);
  x.admission = std::move(admitted.admission);
  x.resolved = std::move(admitted.resolved);
  x.lag_known = shard_.shared.router.table()->lag_known;
  if (DoorObserver* observer = shard_.shared.options.observer) observer->OnAdmitted();

  std::vector<std::string> ids = {x.record.request_id};
  for (size_t i = 1; i < facts->batch; ++i) ids.push_back(shard_.NewId());
  std::string rewritten =
      RewriteBody(x.kind, x.route.shape, *x.facts, body, *facts, x.resolved, ids, split);
  if (sglang) {
    x.live = std::make_shared<LiveRequest>();
    x.live->engine_ids = ids;
    if (!facts->client_ids.empty()) {
      x.record.client_id = facts->client_ids.front().substr(0, 128);
      shard_.shared.live_ids.Add(x.record.client_id, x.live);
      if (facts->client_ids.size() == ids.size()) x.restorer.emplace(ids, facts->client_ids);
    }
  }
  if (split) co_return co_await ServeSplit(x, std::move(rewritten), facts->n);
  co_return co_await Relay(x, std::move(rewritten));
}

Task<std::optional<Outcome>> Session::Admit(Exchange& x, const Ask& ask) {
  Outcome outcome = shard_.shared.router.Resolve(ask);
  Held* held = std::get_if<Held>(&outcome);
  if (held == nullptr) co_return outcome;
  if (shard_.shared.held.fetch_add(1) >= limits_.held_requests) {
    shard_.shared.held.fetch_sub(1);
    co_return Outcome(Refused{429, "DOOR_FULL", "too many requests wait for a sync to end", 1});
  }
  Timer timer(shard_.io.get_executor());
  const int64_t began_ms = NowMs();
  shard_.held.insert(&timer);
  x.hold = &timer;
  for (;;) {
    held = std::get_if<Held>(&outcome);
    const int64_t left_ms = held ? began_ms + held->limit_ms - NowMs() : 0;
    if (held == nullptr || client_left_) break;
    if (left_ms <= 0) {
      Refused too_late = std::move(held->too_late);
      outcome = std::move(too_late);
      break;
    }
    // SetTable posts to this thread after it set the table, so its wake-up cannot come between
    // Resolve and this wait.
    timer.expires_after(std::chrono::milliseconds(left_ms));
    auto [ignored] = co_await timer.async_wait(kAwait);
    (void)ignored;
    if (client_left_) break;
    outcome = shard_.shared.router.Resolve(ask);
  }
  x.hold = nullptr;
  shard_.held.erase(&timer);
  shard_.shared.held.fetch_sub(1);
  x.record.held_ms = NowMs() - began_ms;
  if (client_left_) co_return std::nullopt;
  co_return outcome;
}

Task<bool> Session::Refuse(Exchange& x, Refused refused) {
  x.record.reason = refused.reason;
  if (DoorObserver* observer = shard_.shared.options.observer) {
    observer->OnRefused(refused.reason);
  }
  std::string extra;
  AppendField("X-Lorry-Reason", refused.reason, &extra);
  if (refused.retry_after_s > 0) {
    AppendField("Retry-After", std::to_string(refused.retry_after_s), &extra);
  }
  const bool keep = KeepAlive(x);
  co_return co_await Answer(x, refused.status, kJson, ErrorBody(x.kind, x.head.path, refused),
                            std::move(extra), keep);
}

Task<bool> Session::RefuseCall(Exchange& x, CallResult result) {
  if (client_left_) co_return false;
  switch (result) {
    case CallResult::kUnreachable: {
      Refused why{503, "ENGINE_UNREACHABLE", "the engine does not accept connections", 2};
      co_return co_await Refuse(x, std::move(why));
    }
    case CallResult::kTimedOut: {
      Refused why{504, "ENGINE_TIMEOUT", "the engine sent nothing within the door's idle limit"};
      co_return co_await Refuse(x, std::move(why));
    }
    default: {
      Refused why{502, "ENGINE_BROKE_OFF",
                  "the engine closed the connection without a whole reply"};
      co_return co_await Refuse(x, std::move(why));
    }
  }
}

Task<bool> Session::Answer(Exchange& x, int status, std::string_view content_type, std::string body,
                           std::string extra_headers, bool keep) {
  x.record.status = status;
  std::string head = StatusLine(status);
  AppendField("Content-Type", content_type, &head);
  AppendField("Content-Length", std::to_string(body.size()), &head);
  AppendField("Connection", keep ? "keep-alive" : "close", &head);
  head += LorryHeaders(x.resolved, x.lag_known, x.record.request_id);
  head += extra_headers;
  head += "\r\n";
  const std::string_view sent_body = x.head.method == "HEAD" ? std::string_view() : body;
  const bool sent = co_await WriteClient(head, sent_body, {});
  co_return sent&& keep;
}

Task<bool> Session::ServeFetched(Exchange& x) {
  WatchClient();
  UpstreamCall call(shard_.pool, limits_);
  x.call = &call;
  std::string head = EngineHead(x, x.body.size());
  BufferedReply reply =
      co_await Fetch(std::move(head), std::move(x.body), &call, kControlReplyBytes);
  x.call = nullptr;
  if (reply.result != CallResult::kOk) co_return co_await RefuseCall(x, reply.result);
  const bool keep = KeepAlive(x);
  if (reply.status != 200) {
    const std::string type = reply.content_type;
    co_return co_await Answer(x, reply.status, type, std::move(reply.body), "", keep);
  }
  auto body = x.route.action == RouteAction::kModels
                  ? ModelsBody(reply.body, *shard_.shared.router.table())
                  : RedactedInfo(reply.body);
  if (!body.ok()) {
    {
      Refused why{502, "ENGINE_REPLY_INVALID", std::string(ToStd(body.status().message()))};
      co_return co_await Refuse(x, std::move(why));
    }
  }
  co_return co_await Answer(x, 200, kJson, *std::move(body), "", keep);
}

}  // namespace lorry::door
