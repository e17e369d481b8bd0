// SGLang over HTTP. Routing is by `lora_path`, which is the adapter's name: a bare name in `model`
// would be answered by the base model. Adapters are loaded from directories; the tensor route is
// left alone, because a bad payload ends the server.
#include <atomic>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/base/error.h"
#include "lib/base/strings.h"
#include "services/engine_proxy/engines/engines.h"
#include "services/engine_proxy/engines/http_engine.h"
#include "services/engine_proxy/engines/probe.h"
#include "services/engine_proxy/engines/wire.h"

namespace lorry::engines {
namespace {

using TimePoint = HttpClient::Clock::time_point;

class SglangCalls {
 public:
  static constexpr fleet::EngineKind kKind = fleet::EngineKind::kSglang;

  SglangCalls(boost::asio::io_context& io, HttpTarget target, EngineOptions options)
      : client_(io, std::move(target)),
        shed_for_(options.shed_for),
        api_key_(std::move(options.api_key)),
        admin_key_(options.admin_key.empty() ? api_key_ : std::move(options.admin_key)) {}

  boost::asio::io_context& io() const { return client_.io(); }

  Task<absl::StatusOr<EngineFacts>> Inspect(TimePoint deadline) {
    auto reply = co_await Get("/server_info", deadline);
    if (reply.ok() && IsMissingRoute(*reply)) reply = co_await Get("/get_server_info", deadline);
    if (!reply.ok()) co_return reply.status();
    auto facts = ParseSglangInfo(*reply);
    if (facts.ok()) pins_adapters_ = facts->pins_adapters;
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
    Json body = {{"lora_name", name.value}, {"lora_path", path}};
    if (pins_adapters_) body["pinned"] = true;
    auto reply = co_await Post("/load_lora_adapter", body, admin_key_, deadline);
    if (reply.ok() && IsHalfUnloaded(*reply)) {
      const absl::Status unloaded = co_await Unload(name, deadline);
      if (EndOf(unloaded) == End::kRefused) {  // which says nothing of the adapter
        co_return Error(absl::StatusCode::kFailedPrecondition, "ENGINE_LOAD_UNSETTLED",
                        ToStd(unloaded.message()));
      }
      if (!unloaded.ok()) co_return unloaded;
      reply = co_await Post("/load_lora_adapter", body, admin_key_, deadline);
    }
    if (!reply.ok()) co_return reply.status();
    if (reply->status == 200) co_return absl::OkStatus();
    if (!IsAlreadyLoaded(*reply)) co_return StatusOfLoad(name, *reply);
    const auto listing = co_await List(deadline);
    if (!listing.ok()) co_return listing.status();
    co_return JudgeAlreadyLoaded(*listing, name, path);
  }

  Task<absl::Status> Unload(EngineName name, TimePoint deadline) {
    const Json body = {{"lora_name", name.value}};
    const auto reply = co_await Post("/unload_lora_adapter", body, admin_key_, deadline);
    if (!reply.ok()) co_return reply.status();
    if (reply->status == 200 || IsUnknownAdapter(fleet::EngineKind::kSglang, *reply)) {
      co_return absl::OkStatus();
    }
    co_return StatusOfRefusal("unload " + name.value, *reply);
  }

  Task<absl::StatusOr<fleet::ProbeAnswer>> Probe(EngineName name, fleet::ProbeQuestion question,
                                                 TimePoint deadline) {
    fleet::ProbeAnswer answer;
    if (question.kind == fleet::ProbeKind::kPresence) {
      const auto listing = co_await List(deadline);
      if (!listing.ok()) co_return listing.status();
      const absl::Status present = JudgePresence(*listing, name);
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
    const auto compared = co_await CompareTokens(name.value, deadline);
    if (!compared.ok()) co_return compared.status();
    answer.compared = *compared;
    co_return answer;
  }

  Task<absl::StatusOr<Occupancy>> GetOccupancy(TimePoint deadline) {
    const auto reply = co_await Get("/v1/loads", deadline);
    if (!reply.ok()) co_return reply.status();
    co_return ParseSglangOccupancy(*reply);
  }

  Task<absl::StatusOr<RawReply>> Pass(RawCall raw, TimePoint deadline) {
    HttpCall call{std::move(raw.method), std::move(raw.path), std::move(raw.body), admin_key_};
    auto reply = co_await client_.Call(std::move(call), deadline);
    if (!reply.ok()) co_return reply.status();
    co_return RawReply{reply->status, std::move(reply->body)};
  }

  Task<absl::Status> SetPause(fleet::PauseKind pause, bool flush, TimePoint deadline) {
    const char* mode = ModeOf(pause);
    if (mode == nullptr) {
      co_return Error(absl::StatusCode::kUnimplemented, "ENGINE_PAUSE_KIND",
                      "SGLang pauses by abort, retract or in_place");
    }
    const bool resume = pause == fleet::PauseKind::kNone;
    Json body = Json::object();  // SGLang wants a body even where every field has a default
    if (!resume) body["mode"] = mode;
    const auto path = resume ? "/continue_generation" : "/pause_generation";
    const auto reply = co_await Post(path, body, admin_key_, deadline);
    if (!reply.ok()) co_return reply.status();
    if (reply->status != 200) co_return StatusOfRefusal(path, *reply);
    if (flush && !resume) co_return co_await Flush(deadline);
    co_return absl::OkStatus();
  }

  // One greedy token of the adapter `name`, or of the base model where that is empty, with the
  // log-probabilities of the prompt.
  Task<absl::StatusOr<HttpReply>> Answer(std::string name, Json prompt, TimePoint deadline) {
    Json body = {
        {"input_ids", std::move(prompt)},
        {"sampling_params", {{"max_new_tokens", 1}, {"temperature", 0}, {"ignore_eos", true}}},
        {"return_logprob", true},
        {"logprob_start_len", 0}};  // of the prompt, too
    if (!name.empty()) body["lora_path"] = name;
    auto reply = co_await AskUntilTaken(
        kKind, shed_for_, [&] { return Post("/generate", body, api_key_, deadline); }, deadline);
    if (reply.ok() && IsUnknownAdapter(fleet::EngineKind::kSglang, *reply))
      co_return NameUnknown(name, *reply);
    co_return reply;
  }
  Task<absl::StatusOr<ProbeReply>> Token(std::string name, TimePoint deadline) {
    const auto reply = co_await Answer(std::move(name), ProbePrompt(), deadline);
    if (!reply.ok()) co_return reply.status();
    co_return ParseSglangToken(*reply);
  }

 private:
  Task<absl::StatusOr<std::vector<double>>> ReferenceLogprobs(std::string adapter,
                                                              peft::ReferencePrompt prompt,
                                                              TimePoint deadline) {
    const auto reply = co_await Answer(std::move(adapter), prompt.tokens, deadline);
    if (!reply.ok()) co_return reply.status();
    co_return ParseSglangReference(*reply, prompt);
  }

  // The base model's before and after the adapter's, so that what changes in between (a batch that
  // fills) is taken for noise and not for the adapter.
  Task<absl::StatusOr<std::optional<fleet::ProbeComparison>>> CompareTokens(std::string adapter,
                                                                            TimePoint deadline) {
    const auto before = co_await Token("", deadline);
    if (!before.ok()) co_return before.status();
    const auto answered = co_await Token(std::move(adapter), deadline);
    if (!answered.ok()) co_return answered.status();
    const auto after = co_await Token("", deadline);
    if (!after.ok()) co_return after.status();
    co_return Compare({*before, *after}, {*answered, *answered});
  }

  static const char* ModeOf(fleet::PauseKind pause) {
    switch (pause) {
      case fleet::PauseKind::kNone:
        return "";
      case fleet::PauseKind::kAbort:
        return "abort";
      case fleet::PauseKind::kRetract:
        return "retract";
      case fleet::PauseKind::kInPlace:
        return "in_place";
      default:
        return nullptr;
    }
  }

  Task<absl::Status> Flush(TimePoint deadline) {
    // Requests that were aborted leave the scheduler a little later.
    const auto reply =
        co_await Post("/flush_cache?timeout=5", Json::object(), admin_key_, deadline);
    if (!reply.ok()) co_return reply.status();
    if (reply->status == 200) co_return absl::OkStatus();
    co_return Error(absl::StatusCode::kFailedPrecondition, "ENGINE_FLUSH_FAILED",
                    absl::StrCat("SGLang drops its cache only while nothing runs or waits: ",
                                 ErrorText(*reply)));
  }

  // Of routes that SGLang guards by its API key alone: the admin key is none there.
  Task<absl::StatusOr<HttpReply>> Get(std::string path, TimePoint deadline) {
    return client_.Call({.method = "GET", .path = std::move(path), .body = "", .bearer = api_key_},
                        deadline);
  }
  Task<absl::StatusOr<HttpReply>> Post(std::string path, const Json& body, std::string key,
                                       TimePoint deadline) {
    return client_.Call(
        {.method = "POST", .path = std::move(path), .body = body.dump(), .bearer = std::move(key)},
        deadline);
  }

  const HttpClient client_;
  const Engine::Millis shed_for_;
  const std::string api_key_;
  const std::string admin_key_;
  std::atomic<bool> pins_adapters_ = false;  // as of the last Inspect
};

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> MakeSglang(boost::asio::io_context& io,
                                                   EngineOptions options) {
  auto target = ParseHttpUrl(options.url);
  if (!target.ok()) return target.status();
  auto calls = std::make_shared<SglangCalls>(io, *std::move(target), std::move(options));
  return std::make_unique<HttpEngine<SglangCalls>>(std::move(calls));
}

}  // namespace lorry::engines
