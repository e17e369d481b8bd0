#include "services/engine_proxy/door/in_flight.h"

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <utility>

#include "lib/base/strings.h"
#include "services/engine_proxy/door/exchange.h"
#include "services/engine_proxy/door/fetch.h"
#include "services/engine_proxy/door/resume_plan.h"

namespace lorry::door {
namespace {

using fleet::EngineKind;

bool HasFlipped(const proxy::DoorTable& table, const Resolved& resolved) {
  if (resolved.in_flight == fleet::InFlightMode::kFinishOnOld) return false;
  const proxy::DoorRow* row = table.FindRow(resolved.key.adapter);
  return row != nullptr && row->mode == fleet::RowMode::kOpen && row->target != resolved.name;
}

// Token by token; what else an engine computes is over soon.
bool Generates(const Exchange& x) {
  if (x.kind == EngineKind::kVllm) {
    return x.head.path == "/v1/completions" || x.head.path == "/v1/responses" ||
           x.head.path == "/v1/messages" || x.head.path == "/inference/v1/generate" ||
           x.head.path.starts_with("/v1/chat/completions");
  }
  return x.route.shape == BodyShape::kGenerate || x.route.shape == BodyShape::kCompletion ||
         x.route.shape == BodyShape::kChat || x.route.shape == BodyShape::kMessages;
}

// As vLLM calls them after X-Request-Id (_base_request_id and its callers, 0.32); one for each
// prompt, whatever n is. None: they cannot be known. A beam search makes new requests for each
// token, with ids that it draws.
std::vector<std::string> VllmIds(const Exchange& x) {
  if (x.asks.searches_beams) return {};
  const std::string& id = x.record.request_id;
  if (x.head.path == "/v1/chat/completions" || x.head.path == "/v1/messages") {
    return {"chatcmpl-" + id};
  }
  if (x.head.path == "/inference/v1/generate") return {"generate-tokens-" + id};
  std::vector<std::string> ids;
  if (x.head.path != "/v1/completions" || x.asks.engine_requests > kMaxBatch) return ids;
  for (uint32_t i = 0; i < x.asks.engine_requests; ++i) {
    ids.push_back("cmpl-" + id + "-" + std::to_string(i));
  }
  return ids;
}

// Why this request can only finish; empty: it can be aborted.
std::string WhyItFinishes(const Exchange& x) {
  if (x.kind == EngineKind::kVllm) {
    if (!x.facts->aborts_waiting) return "vLLM aborts by id only with VLLM_SERVER_DEV_MODE=1";
    if (VllmIds(x).empty()) return "vLLM does not tell how it calls this request";
    return "";
  }
  if (x.ids.size() == 0) return "SGLang takes no id on this route";
  if (!x.asks.stream && !x.facts->aborts_waiting) {
    return "this SGLang aborts safely only what has begun, which only a stream shows";
  }
  return "";
}

bool IsToBeResumed(const Exchange& x) {
  return std::any_of(x.resolved.begin(), x.resolved.end(), [](const Resolved& one) {
    return one.in_flight == fleet::InFlightMode::kResumeOnNew;
  });
}

// Why it cannot be resumed; empty: it can.
std::string PlanToResume(Exchange& x) {
  if (x.route.shape != BodyShape::kGenerate) return "only SGLang's /generate is resumed";
  if (x.asks.stream && !x.facts->cumulative_streams) return "--incremental-streaming-output";
  auto plan = PlanResume(x.asks, *x.padded);
  if (!plan.ok()) return std::string(ToStd(plan.status().message()));
  x.resume = std::make_unique<ResumePlan>(*plan);
  return "";
}

// Its own id would abort whatever else the client calls by it.
void NameForVllm(Exchange& x) {
  x.engine_id = x.record.request_id;
  std::string own(x.head.Get("x-request-id"));
  if (own.empty() && x.asks.rid.kind == JsonKind::kString) {
    own = StringValue(*x.padded, x.asks.rid).value_or("");
  }
  if (own.empty() || own.size() > kMaxIdBytes) return;
  if (!x.restorer) x.restorer.emplace();
  x.restorer->ids.emplace(IdSeries(x.engine_id, 1), 1, ClientIds{{std::move(own)}, false});
}

}  // namespace

struct FlipWatch::Aborting {
  explicit Aborting(Shard& shard) : timer(shard.io.get_executor()) {}
  Timer timer;
  EngineKind kind = EngineKind::kUnknown;
  std::string authorization;
  std::vector<std::string> ids;
  bool over = false;
};

void FollowFlips(Exchange& x) {
  const bool follows = std::any_of(x.resolved.begin(), x.resolved.end(), [](const Resolved& one) {
    return one.in_flight != fleet::InFlightMode::kFinishOnOld;
  });
  if (!follows || !Generates(x)) return;
  x.in_flight_why = WhyItFinishes(x);
  if (x.in_flight_why.empty() && IsToBeResumed(x)) x.in_flight_why = PlanToResume(x);
  if (!x.in_flight_why.empty()) return;
  if (x.kind == EngineKind::kVllm) NameForVllm(x);
  x.flip = std::make_unique<FlipWatch>(x);
}

void TellFlips(Shard& shard) {
  if (shard.flips.empty()) return;
  const std::shared_ptr<const proxy::DoorTable> table = shard.shared.router.table();
  for (FlipWatch* flip : shard.flips) flip->OnTable(*table);
}

FlipWatch::FlipWatch(Exchange& x) : x_(x), unwanted_(x.resolved.size()) {
  x_.shard.flips.insert(this);
}

FlipWatch::~FlipWatch() {
  x_.shard.flips.erase(this);
  if (aborting_) aborting_->over = true;
}

void FlipWatch::OnTable(const proxy::DoorTable& table) {
  for (size_t i = 0; i < x_.resolved.size(); ++i) {
    if (unwanted_[i] || !HasFlipped(table, x_.resolved[i])) continue;
    unwanted_[i] = true;
    DoorObserver* observer = x_.shard.shared.options.observer;
    if (observer && !flipped_) observer->OnFlipped(x_.resolved[i].in_flight);
    flipped_ = true;
    x_.record.reason = "ROW_FLIPPED";
    Abort(i);
  }
}

void FlipWatch::Abort(size_t i) {
  const auto prompt = static_cast<uint32_t>(i);
  const bool all = x_.resolved.size() == 1;
  const bool shows_tokens = x_.kind == EngineKind::kSglang && x_.asks.stream;
  if (shows_tokens && !x_.facts->aborts_waiting) {  // once its first one is here
    const auto unwanted = all ? std::nullopt : std::optional<uint32_t>(prompt);
    return SpawnAborts(x_.shard, x_.live->WantAbort(unwanted), *x_.facts);
  }
  const bool begins = !aborting_;
  if (begins) {
    aborting_ = std::make_shared<Aborting>(x_.shard);
    aborting_->kind = x_.kind;
    aborting_->authorization = x_.facts->control_authorization;
  }
  if (x_.kind == EngineKind::kVllm) {
    aborting_->ids = VllmIds(x_);
  } else {
    const auto prompts = static_cast<uint32_t>(x_.asks.prompts());
    for (uint32_t number = 0; number < x_.ids.size(); ++number) {
      if (all || number % prompts == prompt) aborting_->ids.push_back(x_.ids.At(number));
    }
  }
  if (begins) {
    asio::co_spawn(x_.shard.io, AbortUntilOver(x_.shard, aborting_), asio::detached);
  } else {
    aborting_->timer.cancel();
  }
}

Task<void> FlipWatch::AbortUntilOver(Shard& shard, std::shared_ptr<Aborting> it) {
  while (!it->over) {
    if (it->kind == EngineKind::kVllm) {
      co_await SendVllmAborts(shard, it->ids, it->authorization);
    } else {
      co_await SendAborts(shard, it->ids, it->authorization);
    }
    it->timer.expires_after(kAbortAgain);
    auto [ignored] = co_await it->timer.async_wait(kAwait);
    (void)ignored;
  }
}

}  // namespace lorry::door
