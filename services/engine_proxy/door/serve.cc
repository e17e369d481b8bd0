// Session: from a read request to an answer or a relay.
#include <array>
#include <utility>

#include "lib/base/error.h"
#include "lib/base/strings.h"
#include "services/engine_proxy/door/answer.h"
#include "services/engine_proxy/door/fetch.h"
#include "services/engine_proxy/door/heads.h"
#include "services/engine_proxy/door/relay.h"
#include "services/engine_proxy/door/reply.h"
#include "services/engine_proxy/door/resolve.h"
#include "services/engine_proxy/door/session.h"

namespace lorry::door {
namespace {

constexpr std::string_view kJson = "application/json";
// Control routes answer with a few hundred KiB at most (SGLang's /server_info).
constexpr size_t kControlReplyBytes = 4u << 20;

// It is of the calls that change the engine for everybody. Where a request that waits must not be
// aborted, the engine would abort it all the same.
std::optional<Refused> WhyNotAbortAll(const Exchange& x) {
  if (x.shard.shared.options.on_call == nullptr) {
    return Refused{403, "ROUTE_REFUSED",
                   "abort_all would end other clients' requests; abort by rid, or start the proxy "
                   "with --framework-calls=on where its clients may do that"};
  }
  if (x.facts->aborts_waiting) return std::nullopt;
  return Refused{403, "ROUTE_REFUSED",
                 "this SGLang never lets go of the adapter of a request that is aborted before its "
                 "first token; abort by rid, or use 0.5.23 or later"};
}

bool AsksFor(const PaddedBody& body, const std::vector<JsonField>& fields, std::string_view key) {
  const JsonField* field = FindField(fields, key);
  return field != nullptr && BoolValue(body, field->value).value_or(false);
}

}  // namespace

bool Session::Choose(Exchange& x) {
  const proxy::DoorTable& table = shard_.Table();
  x.kind = table.engine;
  x.facts = shard_.shared.facts.load();
  x.route = ChooseRoute(x.kind, x.head.method, x.head.path,
                        {.unknown = shard_.shared.options.allow_unknown_routes,
                         .calls = shard_.shared.options.on_call != nullptr});
  return !table.boot.empty() && x.kind != fleet::EngineKind::kUnknown;
}

Task<bool> Session::Serve(Exchange& x) {
  if (!Choose(x)) return Refuse(x, NoEngine());
  switch (x.route.action) {
    case RouteAction::kHealth:
      return Answer(x, 200, kJson, "");
    case RouteAction::kRewrite:
      return ServeRewritten(x);
    case RouteAction::kAbort:
      return ServeAbort(x);
    case RouteAction::kModels:
    case RouteAction::kModel:
    case RouteAction::kServerInfo:
      return ServeFetched(x);
    case RouteAction::kLabel:
      return ServeLabel(x);
    case RouteAction::kCall:
      return ServeCall(x);
    case RouteAction::kPass:
    case RouteAction::kPassCall:
      client_.Watch();
      return RelayRequest(x);
    case RouteAction::kRefuse:
      break;
  }
  return Refuse(x, NotRouted(x));
}

Task<bool> Session::ServeFetched(Exchange& x) {
  client_.Watch();
  UpstreamCall call(shard_.pool, shard_.shared.options.limits);
  const LeaveHook hook(client_, [&call] { call.Cancel(); });
  const std::string path(x.head.path);
  if (x.route.action == RouteAction::kModel) x.head.path = kModelsPath;
  const std::string head = EngineHead(x, x.body.size());
  const std::array<asio::const_buffer, 2> request = {asio::buffer(head), asio::buffer(x.body)};
  BufferedReply reply = co_await Fetch(call, request, kControlReplyBytes);
  if (reply.result != CallResult::kOk) {
    co_return co_await RefuseCall(x, reply.result, std::move(reply.body));
  }
  if (reply.status != 200) {
    co_return co_await Answer(x, reply.status, reply.content_type, std::move(reply.body));
  }
  const proxy::DoorTable& table = shard_.Table();
  auto body = x.route.action == RouteAction::kModels  ? ModelsBody(reply.body, table)
              : x.route.action == RouteAction::kModel ? ModelBody(reply.body, table, path)
                                                      : RedactedInfo(reply.body);
  if (absl::IsNotFound(body.status()) && table.awaits_desired) {
    co_return co_await Refuse(x, NotToldYet());
  }
  if (!body.ok()) {
    Refused why{absl::IsNotFound(body.status()) ? 404 : 502, std::string(ReasonOf(body.status())),
                std::string(ToStd(body.status().message()))};
    co_return co_await Refuse(x, std::move(why));
  }
  co_return co_await Answer(x, 200, kJson, *std::move(body));
}

// SGLang answers 200 whether or not it knew the id; so does the door. Where SGLang leaks a request
// that is aborted in its queue (sglang#34205), one that streams is aborted once its first token was
// seen; one that does not stream shows none, and runs to its end.
Task<bool> Session::ServeAbort(Exchange& x) {
  const PaddedBody body = PaddedBody::Lent(x.body);
  auto fields = ObjectFields(body);
  if (!fields.ok()) {
    Refused why{400, "REQUEST_INVALID", "a JSON object is expected"};
    co_return co_await Refuse(x, std::move(why));
  }
  if (AsksFor(body, *fields, "abort_all")) {
    if (auto why = WhyNotAbortAll(x)) co_return co_await Refuse(x, *std::move(why));
    // What waits here ends before the engine judges the key.
    if (auto why = LacksKey(x)) co_return co_await Refuse(x, *std::move(why));
    x.aborts_all = true;
    ++shard_.shared.aborts_of_all;
    shard_.shared.ask_held_again();
    client_.Watch();
    co_return co_await RelayRequest(x);
  }
  const JsonField* rid = FindField(*fields, "rid");
  auto id = rid != nullptr && rid->value.kind == JsonKind::kString
                ? StringValue(body, rid->value)
                : absl::StatusOr<std::string>(std::string());
  if (!id.ok()) {
    Refused why{400, "REQUEST_INVALID", "rid is not a string"};
    co_return co_await Refuse(x, std::move(why));
  }
  std::optional<Refused> why_not_all;  // others may call their requests the same
  for (const LiveIds::Target& target : shard_.shared.live_ids.Find(*id)) {
    if (auto why = LacksKey(x, &target.request->authorization())) {
      why_not_all = std::move(why);
      continue;
    }
    co_await AbortUnwanted(shard_, target.request, target.request->ClientAborts(target.prompt),
                           x.facts);
  }
  if (why_not_all) co_return co_await Refuse(x, *std::move(why_not_all));
  co_return co_await Answer(x, 200, kJson, "");
}

// Where the caller does not say whether, SGLang ends every request that it has, of all clients.
Task<bool> Session::ServeLabel(Exchange& x) {
  constexpr std::string_view kAborts = "abort_all_requests";
  const PaddedBody body = PaddedBody::Lent(x.body);
  auto fields = ObjectFields(body);
  if (!fields.ok()) {
    Refused why{400, "REQUEST_INVALID", "a JSON object is expected"};
    co_return co_await Refuse(x, std::move(why));
  }
  if (AsksFor(body, *fields, kAborts)) {
    if (auto why = WhyNotAbortAll(x)) co_return co_await Refuse(x, *std::move(why));
    x.aborts_all = true;
  } else if (FindField(*fields, kAborts) == nullptr) {
    const size_t open = x.body.find('{');
    const JsonRange object{open, x.body.size() - open, JsonKind::kObject};
    x.spliced.emplace(x.body, std::vector{InsertField(object, fields->empty(), kAborts, "false")});
  }
  client_.Watch();
  co_return co_await RelayRequest(x);
}

}  // namespace lorry::door
