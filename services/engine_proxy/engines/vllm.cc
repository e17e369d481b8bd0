// vLLM over HTTP (Python frontend). `load_inplace` is never sent: it stays with the adapter and
// makes vLLM read the directory again at every use. What needs VLLM_SERVER_DEV_MODE=1 (limits,
// pauses) is missed without it, and a warning says so.
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "lib/base/error.h"
#include "lib/base/mutex.h"
#include "services/engine_proxy/engines/engines.h"
#include "services/engine_proxy/engines/http_engine.h"
#include "services/engine_proxy/engines/probe.h"
#include "services/engine_proxy/engines/wire.h"

namespace lorry::engines {
namespace {

using TimePoint = HttpClient::Clock::time_point;

class VllmCalls {
 public:
  static constexpr fleet::EngineKind kKind = fleet::EngineKind::kVllm;

  VllmCalls(boost::asio::io_context& io, HttpTarget target, EngineOptions options)
      : client_(io, std::move(target)),
        shed_for_(options.shed_for),
        api_key_(std::move(options.api_key)) {}

  boost::asio::io_context& io() const { return client_.io(); }

  Task<absl::StatusOr<EngineFacts>> Inspect(TimePoint deadline) {
    const auto metrics = co_await Metrics(deadline);
    if (!metrics.ok()) co_return metrics.status();
    auto boot = ParseVllmBoot(*metrics);
    if (!boot.ok()) co_return boot.status();
    absl::StatusOr<EngineFacts> facts = Known(*boot);
    if (!facts.ok()) facts = co_await InspectBoot(*std::move(boot), deadline);
    if (facts.ok()) AddVllmMetrics(metrics->body, *facts);
    co_return facts;
  }

  Task<absl::StatusOr<Engine::Listing>> List(TimePoint deadline) {
    const auto reply = co_await Get("/v1/models", deadline);
    if (!reply.ok()) co_return reply.status();
    auto models = ParseModels(*reply);
    if (!models.ok()) co_return models.status();
    co_return std::move(models->adapters);
  }

  Task<absl::Status> Load(EngineName name, std::string path, TimePoint deadline) {
    const Json body = {{"lora_name", name.value}, {"lora_path", path}};
    const auto reply = co_await Post("/v1/load_lora_adapter", body, deadline);
    if (!reply.ok()) co_return reply.status();
    if (reply->status == 200) co_return absl::OkStatus();
    if (IsMissingRoute(*reply)) co_return ToStatus(RuntimeLoraDisabled());
    if (!IsAlreadyLoaded(*reply)) co_return StatusOfLoad(name, *reply);
    const auto listing = co_await List(deadline);
    if (!listing.ok()) co_return listing.status();
    co_return JudgeAlreadyLoaded(*listing, name, path);
  }

  Task<absl::Status> Unload(EngineName name, TimePoint deadline) {
    const Json body = {{"lora_name", name.value}};
    const auto reply = co_await Post("/v1/unload_lora_adapter", body, deadline);
    if (!reply.ok()) co_return reply.status();
    if (reply->status == 200 || IsUnknownAdapter(kKind, *reply)) co_return absl::OkStatus();
    if (IsMissingRoute(*reply)) co_return ToStatus(RuntimeLoraDisabled());
    co_return StatusOfRefusal("unload " + name.value, *reply);
  }

  Task<absl::StatusOr<fleet::ProbeAnswer>> Probe(EngineName name, fleet::ProbeQuestion question,
                                                 TimePoint deadline) {
    const auto listed = co_await Get("/v1/models", deadline);
    if (!listed.ok()) co_return listed.status();
    const auto models = ParseModels(*listed);
    if (!models.ok()) co_return models.status();
    fleet::ProbeAnswer answer;
    if (question.kind == fleet::ProbeKind::kPresence) {
      const absl::Status present = JudgePresence(models->adapters, name);
      if (!present.ok()) co_return present;
      co_return answer;
    }
    if (question.kind == fleet::ProbeKind::kToken) {
      const auto token = co_await Token(name.value, deadline);
      if (!token.ok()) co_return token.status();
      co_return answer;
    }
    if (question.kind == fleet::ProbeKind::kReference) {
      const auto gap =
          co_await AskReference(question.reference, [&](const peft::ReferencePrompt& prompt) {
            return ReferenceLogprobs(name.value, prompt, deadline);
          });
      if (!gap.ok()) co_return gap.status();
      answer.gap = *gap;
      if (answer.gap.has_value() && TellsFromBase(*answer.gap)) co_return answer;
    }
    const std::string base = models->base_models.empty() ? "" : models->base_models.front();
    const auto compared = co_await CompareTokens(base, name.value, deadline);
    if (!compared.ok()) co_return compared.status();
    answer.compared = *compared;
    co_return answer;
  }

  Task<absl::StatusOr<Occupancy>> GetOccupancy(TimePoint deadline) {
    const auto reply = co_await Metrics(deadline);
    if (!reply.ok()) co_return reply.status();
    co_return ParseVllmOccupancy(*reply);
  }

  // No probe is under way meanwhile, and each that comes later must not compare with what the base
  // model was before.
  Task<absl::StatusOr<RawReply>> Pass(RawCall raw, TimePoint deadline) {
    if (MayChangeBase(raw.path)) ForgetBase();
    HttpCall call{std::move(raw.method), std::move(raw.path), std::move(raw.body), api_key_};
    auto reply = co_await client_.Call(std::move(call), deadline);
    if (!reply.ok()) co_return reply.status();
    co_return RawReply{reply->status, std::move(reply->body)};
  }

  Task<absl::Status> SetPause(fleet::PauseKind pause, bool flush, TimePoint deadline) {
    const std::string path = PathOf(pause, flush);
    if (path.empty()) {
      co_return Error(absl::StatusCode::kUnimplemented, "ENGINE_PAUSE_KIND",
                      "vLLM pauses by abort, wait or keep");
    }
    std::string asked = path;
    auto reply = co_await Post(path, Json(), deadline);
    const std::string areals = ArealPathOf(pause);
    if (reply.ok() && IsMissingRoute(*reply) && !areals.empty()) {
      // AReaL 1.0.4's fails on vLLM 0.32, which takes no wait_for_inflight_requests any more.
      asked = absl::StrCat(areals, " (with VLLM_SERVER_DEV_MODE=1 vLLM has a route of its own)");
      reply = co_await Post(areals, Json(), deadline);
    }
    if (!reply.ok()) co_return reply.status();
    if (reply->status == 200) co_return absl::OkStatus();
    // An engine that cannot be paused is not paused: it need not be told to go on.
    if (IsMissingRoute(*reply) && pause == fleet::PauseKind::kNone) co_return absl::OkStatus();
    if (IsMissingRoute(*reply)) co_return ToStatus(DevModeOff());
    co_return StatusOfRefusal(asked, *reply);
  }

  // One greedy token of `model`: an adapter, or the base model by its own name. One alone, because
  // where two tokens are almost as likely either may be answered, and a second one would then
  // follow another text.
  Task<absl::StatusOr<ProbeReply>> Token(std::string model, TimePoint deadline) {
    const Json body = {{"model", model},   {"prompt", ProbePrompt()}, {"max_tokens", 1},
                       {"temperature", 0}, {"ignore_eos", true},      {"logprobs", 0}};
    const auto reply = co_await AskUntilTaken(
        kKind, shed_for_, [&] { return Post("/v1/completions", body, deadline); }, deadline);
    if (!reply.ok()) co_return reply.status();
    if (IsUnknownAdapter(kKind, *reply)) co_return NameUnknown(model, *reply);
    co_return ParseVllmToken(*reply);
  }

 private:
  // As the next token after each beginning of the prompt, in one request: a vLLM on a CPU that is
  // asked for the log-probabilities of a prompt (EngineFacts::dies_of_prompt_logprobs) may die.
  Task<absl::StatusOr<std::vector<double>>> ReferenceLogprobs(std::string adapter,
                                                              peft::ReferencePrompt prompt,
                                                              TimePoint deadline) {
    const auto& tokens = prompt.tokens;
    Json beginnings = Json::array();
    for (auto end = tokens.begin() + 1; end != tokens.end(); ++end)
      beginnings.push_back(std::vector<uint32_t>(tokens.begin(), end));
    const Json body = {{"model", adapter},
                       {"prompt", std::move(beginnings)},
                       {"max_tokens", 1},
                       {"temperature", 0},
                       {"ignore_eos", true},
                       {"logprobs", 0},
                       {"logprob_token_ids", std::set<uint32_t>(tokens.begin() + 1, tokens.end())},
                       {"return_tokens_as_token_ids", true}};
    const auto reply = co_await AskUntilTaken(
        kKind, shed_for_, [&] { return Post("/v1/completions", body, deadline); }, deadline);
    if (!reply.ok()) co_return reply.status();
    if (IsUnknownAdapter(kKind, *reply)) co_return NameUnknown(adapter, *reply);
    co_return ParseVllmReference(*reply, prompt);
  }

  using Comparison = std::optional<fleet::ProbeComparison>;
  Task<absl::StatusOr<Comparison>> CompareTokens(std::string base, std::string adapter,
                                                 TimePoint deadline) {
    const auto is_no_number = [](const absl::Status& status) {
      return ReasonOf(status) == "PROBE_NOT_FINITE";
    };
    const auto of_base = co_await BaseTokens(std::move(base), deadline);
    const bool is_comparable = !is_no_number(of_base.status());
    if (is_comparable && !of_base.ok()) co_return of_base.status();
    const auto of_adapter = co_await TwoTokens(std::move(adapter), deadline);
    // Where the base model's answer is no number, the adapter's need not be one either.
    if (!is_comparable && is_no_number(of_adapter.status())) co_return Comparison();
    if (!of_adapter.ok()) co_return of_adapter.status();
    if (!is_comparable) co_return Comparison();
    if (!of_base->has_value()) co_return Comparison();
    co_return Compare(**of_base, *of_adapter);
  }

  // Where the engine is not known to run on anything but a CPU, it may give the base model's
  // requests an adapter's weights (EngineFacts::mixes_base). There the base model is asked
  // once, until it is given other weights, and while no adapter is at work; before that there is
  // nothing to compare.
  Task<absl::StatusOr<std::optional<ProbePair>>> BaseTokens(std::string base, TimePoint deadline) {
    const Boot boot = LastBoot();
    if (boot.base_alone.has_value()) co_return boot.base_alone;
    const bool may_mix = boot.facts.device.empty() || boot.facts.device == kCpu;
    if (may_mix && !co_await IsWithoutAdapters(deadline)) co_return std::nullopt;
    const auto answered = co_await TwoTokens(std::move(base), deadline);
    if (!answered.ok()) co_return answered.status();
    if (!may_mix) co_return *answered;
    if (!co_await IsWithoutAdapters(deadline)) co_return std::nullopt;
    RememberBase(boot.facts.boot, *answered);
    co_return *answered;
  }

  Task<absl::StatusOr<ProbePair>> TwoTokens(std::string model, TimePoint deadline) {
    auto first = co_await Token(model, deadline);
    if (!first.ok()) co_return first.status();
    auto second = co_await Token(std::move(model), deadline);
    if (!second.ok()) co_return second.status();
    co_return ProbePair{*std::move(first), *std::move(second)};
  }

  // No request that it runs or keeps waiting names one, by its own account.
  Task<bool> IsWithoutAdapters(TimePoint deadline) {
    const auto load = co_await GetOccupancy(deadline);
    if (!load.ok()) co_return false;
    co_return load->names.has_value() ? load->names->empty() : load->running + load->waiting == 0;
  }

  // Nothing of this changes within a life of the process, and asking for it costs up to 2 s.
  Task<absl::StatusOr<EngineFacts>> InspectBoot(BootId boot, TimePoint deadline) {
    EngineFacts facts;
    facts.boot = std::move(boot);
    facts.limits.kind = kKind;
    const auto version = co_await Get("/version", deadline);
    if (!version.ok()) co_return version.status();
    facts.version = StringIn(ParseJson(version->body), "version");

    const auto listed = co_await Get("/v1/models", deadline);
    if (!listed.ok()) co_return listed.status();
    const auto models = ParseModels(*listed);
    if (!models.ok()) co_return models.status();
    facts.base_models = models->base_models;
    facts.model_path = models->root;

    // A route that exists answers a GET with 405; one that is switched off is not there.
    const auto route = co_await Get("/v1/load_lora_adapter", deadline);
    if (!route.ok()) co_return route.status();
    if (IsMissingRoute(*route)) facts.problems.push_back(RuntimeLoraDisabled());

    // The first call of a real one takes some 2 s: it collects a description of the machine.
    const auto info = co_await Get("/server_info?config_format=json", deadline);
    if (!info.ok()) co_return info.status();
    AddVllmServerInfo(*info, facts);
    if (info->status == 200 || IsMissingRoute(*info)) Remember(facts);
    co_return facts;
  }

  // What vLLM releases at level 1 comes back as it was; at level 2 it is gone, and comes anew from
  // the framework. All else that is passed gives weights.
  static bool MayChangeBase(const std::string& path) {
    const bool is_sleep = absl::StartsWith(path, "/sleep") || absl::StartsWith(path, "/wake_up");
    return !is_sleep || absl::StrContains(path, "level=2");
  }

  static std::string PathOf(fleet::PauseKind pause, bool flush) {
    const char* mode = nullptr;
    switch (pause) {
      case fleet::PauseKind::kNone:
        return "/resume";
      case fleet::PauseKind::kAbort:
        mode = "abort";
        break;
      case fleet::PauseKind::kWait:
        mode = "wait";
        break;
      case fleet::PauseKind::kKeep:
        mode = "keep";
        break;
      default:
        return "";
    }
    return absl::StrCat("/pause?mode=", mode, "&clear_cache=", flush ? "true" : "false");
  }

  // AReaL's server around vLLM has routes of its own for an abort and its end, also without dev mode,
  // in which AReaL does not start it (areal/engine/vllm_ext/areal_vllm_server.py, 1.0.4).
  static std::string ArealPathOf(fleet::PauseKind pause) {
    if (pause == fleet::PauseKind::kAbort) return "/areal_pause_generation";
    return pause == fleet::PauseKind::kNone ? "/areal_continue_generation" : "";
  }

  Task<absl::StatusOr<HttpReply>> Get(std::string path, TimePoint deadline) {
    return client_.Call({.method = "GET", .path = std::move(path), .body = "", .bearer = api_key_},
                        deadline);
  }
  Task<absl::StatusOr<HttpReply>> Metrics(TimePoint deadline) {
    return client_.Call({.method = "GET",
                         .path = "/metrics",
                         .body = "",
                         .bearer = api_key_,
                         .sift = SiftVllmMetrics},
                        deadline);
  }
  Task<absl::StatusOr<HttpReply>> Post(std::string path, const Json& body, TimePoint deadline) {
    std::string text = body.is_null() ? std::string() : body.dump();
    return client_.Call(
        {.method = "POST", .path = std::move(path), .body = std::move(text), .bearer = api_key_},
        deadline);
  }

  // A life of the engine's process as it is known here.
  struct Boot {
    EngineFacts facts;
    // The base model's answers while no adapter was at work, since it was last given weights.
    std::optional<ProbePair> base_alone;
  };

  // NOT_FOUND: this boot was not inspected yet.
  absl::StatusOr<EngineFacts> Known(const BootId& boot) const {
    MutexLock lock(mutex_);
    if (last_boot_.facts.boot == boot) return last_boot_.facts;
    return absl::NotFoundError("");
  }
  Boot LastBoot() const {
    MutexLock lock(mutex_);
    return last_boot_;
  }
  void Remember(const EngineFacts& facts) {
    MutexLock lock(mutex_);
    last_boot_ = {facts, std::nullopt};
  }
  void RememberBase(const BootId& boot, const ProbePair& answered) {
    MutexLock lock(mutex_);
    if (!boot.empty() && last_boot_.facts.boot == boot) last_boot_.base_alone = answered;
  }

  void ForgetBase() {
    MutexLock lock(mutex_);
    last_boot_.base_alone.reset();
  }

  const HttpClient client_;
  const Engine::Millis shed_for_;
  const std::string api_key_;
  mutable Mutex mutex_;
  Boot last_boot_ LORRY_GUARDED_BY(mutex_);  // the last one inspected
};

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> MakeVllm(boost::asio::io_context& io,
                                                 EngineOptions options) {
  auto target = ParseHttpUrl(options.url);
  if (!target.ok()) return target.status();
  auto calls = std::make_shared<VllmCalls>(io, *std::move(target), std::move(options));
  return std::make_unique<HttpEngine<VllmCalls>>(std::move(calls));
}

}  // namespace lorry::engines
