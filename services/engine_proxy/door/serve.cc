// Session: from a read request to an answer or a relay.
#include <array>
#include <charconv>
#include <utility>

#include "lib/base/error.h"
#include "lib/base/strings.h"
#include "services/engine_proxy/door/admit.h"
#include "services/engine_proxy/door/answer.h"
#include "services/engine_proxy/door/fetch.h"
#include "services/engine_proxy/door/heads.h"
#include "services/engine_proxy/door/relay.h"
#include "services/engine_proxy/door/reply.h"
#include "services/engine_proxy/door/session.h"
#include "services/engine_proxy/door/split.h"

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
  const std::shared_ptr<const proxy::DoorTable> table = shard_.shared.router.table();
  x.kind = table->engine;
  x.facts = shard_.shared.facts.load();
  x.route =
      ChooseRoute(x.kind, x.head.method, x.head.path, shard_.shared.options.allow_unknown_routes);
  if (table->boot.empty() || x.kind == fleet::EngineKind::kUnknown) {
    Refused why{503, "ENGINE_UNREACHABLE", "no engine answers behind this door", 2};
    co_return co_await Refuse(x, std::move(why));
  }
  switch (x.route.action) {
    case RouteAction::kHealth:
      co_return co_await Answer(x, 200, kJson, "");
    case RouteAction::kRewrite:
      co_return co_await ServeRewritten(x);
    case RouteAction::kAbort:
      co_return co_await ServeAbort(x);
    case RouteAction::kModels:
    case RouteAction::kModel:
    case RouteAction::kServerInfo:
      co_return co_await ServeFetched(x);
    case RouteAction::kPass: {
      client_.Watch();
      Relay relay(x);
      const std::array<std::string_view, 1> body = {x.body};
      co_return co_await relay.Run(body);
    }
    case RouteAction::kRefuse:
      break;
  }
  Refused why{x.route.status, "ROUTE_REFUSED", x.route.message};
  co_return co_await Refuse(x, std::move(why));
}

Task<bool> Session::ServeRewritten(Exchange& x) {
  if (x.head.method == "HEAD") {
    Refused why{405, "ROUTE_REFUSED", "use POST"};
    co_return co_await Refuse(x, std::move(why));
  }
  if (!x.head.GetAll("content-encoding").empty()) {
    Refused why{415, "REQUEST_INVALID", "compressed bodies cannot be read here; send plain JSON"};
    co_return co_await Refuse(x, std::move(why));
  }
  const PaddedBody body(std::move(x.body));
  auto facts = ReadBody(x.kind, x.route.shape, *x.facts, body);
  if (!facts.ok()) co_return co_await Refuse(x, Invalid(facts.status()));
  auto min_version = MinVersion(x.head);
  if (!min_version.ok()) co_return co_await Refuse(x, Invalid(min_version.status()));
  const bool sglang = x.kind == fleet::EngineKind::kSglang;
  const bool split = sglang && x.facts->split_n && facts->n > 1;
  if (split && (facts->stream || facts->batch > 0 || facts->n > kMaxSplit)) {
    Refused why{400, "N_UNSUPPORTED_ON_SGLANG",
                "n > 1 unbalances this SGLang's adapter counters, so the door "
                "splits it, for one prompt, without stream and up to n = " +
                    std::to_string(kMaxSplit) + "; send single requests instead"};
    co_return co_await Refuse(x, std::move(why));
  }
  x.record.asked = facts->adapters;
  client_.Watch();
  const Ask ask{facts->adapters, *min_version};
  std::optional<Outcome> outcome = co_await Admit(shard_, client_, ask, &x.record.held_ms);
  if (!outcome) co_return false;
  if (Refused* refused = std::get_if<Refused>(&*outcome)) co_return co_await Refuse(x, *refused);
  Admitted& admitted = std::get<Admitted>(*outcome);
  x.admission = std::move(admitted.admission);
  x.resolved = std::move(admitted.resolved);
  x.lag_known = shard_.shared.router.table()->lag_known;
  if (DoorObserver* observer = shard_.shared.options.observer) observer->OnAdmitted();
  if (!CarriesAdapters(x.kind, x.route.shape) && !x.resolved.front().name.empty()) {
    Refused why{403, "ROUTE_REFUSED",
                std::string(x.head.path) +
                    " of SGLang answers with the base model whatever it is asked for; "
                    "ask for @base there, where policy allows it"};
    co_return co_await Refuse(x, std::move(why));
  }

  std::vector<std::string> ids = {x.record.request_id};
  for (size_t i = 1; i < facts->batch; ++i) ids.push_back(shard_.NewId());
  const SplicedBody rewritten(
      body.view(), RewriteEdits(x.kind, x.route.shape, *x.facts, *facts, x.resolved, ids, split));
  if (sglang) {
    x.live = std::make_shared<LiveRequest>();
    x.live->engine_ids = ids;
    if (!facts->client_ids.empty()) {
      x.record.client_id = facts->client_ids.front().substr(0, 128);
      shard_.shared.live_ids.Add(x.record.client_id, x.live);
      if (facts->client_ids.size() == ids.size()) x.restorer.emplace(ids, facts->client_ids);
    }
  }
  if (split) {
    SplitCall calls(x, facts->n);
    co_return co_await calls.Run(rewritten.Joined());
  }
  Relay relay(x);
  co_return co_await relay.Run(rewritten.pieces());
}

Task<bool> Session::ServeFetched(Exchange& x) {
  client_.Watch();
  UpstreamCall call(shard_.pool, shard_.shared.options.limits);
  const LeaveHook hook(client_, [&call] { call.Cancel(); });
  const std::string path(x.head.path);
  if (x.route.action == RouteAction::kModel) x.head.path = kModelsPath;
  const std::string head = EngineHead(x, x.body.size());
  BufferedReply reply = co_await Fetch(call, head, x.body, kControlReplyBytes);
  if (reply.result != CallResult::kOk) co_return co_await RefuseCall(x, reply.result);
  if (reply.status != 200) {
    co_return co_await Answer(x, reply.status, reply.content_type, std::move(reply.body));
  }
  const auto table = shard_.shared.router.table();
  auto body = x.route.action == RouteAction::kModels  ? ModelsBody(reply.body, *table)
              : x.route.action == RouteAction::kModel ? ModelBody(reply.body, *table, path)
                                                      : RedactedInfo(reply.body);
  if (!body.ok()) {
    Refused why{absl::IsNotFound(body.status()) ? 404 : 502, std::string(ReasonOf(body.status())),
                std::string(ToStd(body.status().message()))};
    co_return co_await Refuse(x, std::move(why));
  }
  co_return co_await Answer(x, 200, kJson, *std::move(body));
}

// SGLang answers 200 whether or not it knew the id; so does the door. A request that streams is
// aborted as soon as its first token was seen; one that does not stream runs to its end, as its
// first token cannot be seen.
Task<bool> Session::ServeAbort(Exchange& x) {
  const PaddedBody body(std::move(x.body));
  auto fields = ObjectFields(body);
  if (!fields.ok()) {
    Refused why{400, "REQUEST_INVALID", "a JSON object is expected"};
    co_return co_await Refuse(x, std::move(why));
  }
  const JsonField* all = FindField(*fields, "abort_all");
  if (all != nullptr && body.Text(all->value) == "true") {
    Refused why{403, "ROUTE_REFUSED", "abort_all would end other clients' requests; abort by rid"};
    co_return co_await Refuse(x, std::move(why));
  }
  const JsonField* rid = FindField(*fields, "rid");
  auto id = rid != nullptr && rid->value.kind == JsonKind::kString
                ? StringValue(body, rid->value)
                : absl::StatusOr<std::string>(std::string());
  if (!id.ok()) {
    Refused why{400, "REQUEST_INVALID", "rid is not a string"};
    co_return co_await Refuse(x, std::move(why));
  }
  for (const std::shared_ptr<LiveRequest>& live : shard_.shared.live_ids.Find(id->substr(0, 128))) {
    live->abort_wanted = true;
    if (!live->answered) continue;
    co_await SendAborts(shard_, live->engine_ids, x.facts->control_authorization);
  }
  co_return co_await Answer(x, 200, kJson, "");
}

}  // namespace lorry::door
