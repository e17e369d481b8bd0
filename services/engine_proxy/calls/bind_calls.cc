#include "services/engine_proxy/calls/bind_calls.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "lib/base/strings.h"
#include "services/engine_proxy/door/json_splice.h"
#include "services/engine_proxy/machine/binding_name.h"

namespace lorry::calls {
namespace {

using door::CallReply;
using door::Refused;
using fleet::EngineKind;
using proxy::AnswerBinding;
using proxy::BindAnswer;
using Json = nlohmann::ordered_json;

constexpr std::string_view kJson = "application/json";
constexpr std::string_view kText = "text/plain; charset=utf-8";
// TRL's server knows one adapter, under this name.
constexpr std::string_view kTrlName = "policy";

enum class Verb { kLoad, kLoadTensors, kUnload, kTrlLoad, kPrimeLoad, kSkyrlLoad };
struct Spelling {
  EngineKind engine;
  std::string_view path;
  Verb verb;
};
constexpr Spelling kSpellings[] = {
    {EngineKind::kSglang, "/load_lora_adapter", Verb::kLoad},
    {EngineKind::kSglang, "/load_lora_adapter_from_tensors", Verb::kLoadTensors},
    {EngineKind::kSglang, "/unload_lora_adapter", Verb::kUnload},
    {EngineKind::kVllm, "/v1/load_lora_adapter", Verb::kLoad},
    {EngineKind::kVllm, "/v1/unload_lora_adapter", Verb::kUnload},
    {EngineKind::kVllm, "/load_lora_adapter/", Verb::kTrlLoad},
    // src/prime_rl/inference/vllm/server.py at 559b447.
    {EngineKind::kVllm, "/load_lora_adapter", Verb::kPrimeLoad},
    // skyrl/backends/skyrl_train/inference_servers/vllm_server_actor.py at a956457.
    {EngineKind::kVllm, "/skyrl/v1/load_lora_adapter", Verb::kSkyrlLoad},
};

const Spelling* Find(const door::EngineCall& call) {
  const auto* const it = std::ranges::find_if(kSpellings, [&](const Spelling& spelling) {
    return spelling.engine == call.engine && spelling.path == call.path;
  });
  return it != std::end(kSpellings) ? it : nullptr;
}

Refused Invalid(std::string message) { return {400, "REQUEST_INVALID", std::move(message)}; }

// Empty where the field is absent; none: it is no text.
std::optional<std::string> TextOf(const door::PaddedBody& body,
                                  const std::vector<door::JsonField>& fields,
                                  std::string_view name) {
  const door::JsonField* field = door::FindField(fields, name);
  if (field == nullptr) return "";
  if (field->value.kind != door::JsonKind::kString) return std::nullopt;
  auto text = door::StringValue(body, field->value);
  if (!text.ok()) return std::nullopt;
  return *std::move(text);
}

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// `loaded` is what SGLang tells of every adapter, and null where it knows no such name.
CallReply Sglang(int status, std::string message, Json loaded) {
  return {status, std::string(kJson),
          Dump({{"rid", nullptr},
                {"http_worker_ipc", nullptr},
                {"success", status == 200},
                {"error_message", std::move(message)},
                {"loaded_adapters", std::move(loaded)}})};
}

CallReply Vllm(int status, std::string_view type, std::string message) {
  return {status, std::string(kJson),
          Dump({{"error",
                 {{"message", std::move(message)},
                  {"type", type},
                  {"param", nullptr},
                  {"code", status}}}})};
}

std::string Why(const AnswerBinding& answer) {
  return answer.detail.empty() ? answer.reason : answer.reason + ": " + answer.detail;
}

Json LoadedBy(const AnswerBinding& answer) {
  Json loaded = Json::object();
  for (const auto& [name, path] : answer.bound) loaded[name] = path;
  return loaded;
}

CallReply SglangAnswer(const AnswerBinding& answer) {
  const std::string& name = answer.client_name;
  switch (answer.answer) {
    case BindAnswer::kDone:
      return Sglang(200, "", LoadedBy(answer));
    case BindAnswer::kAlreadyLoaded:
      return Sglang(400, "Failed to load LoRA adapter " + name + " because it is already loaded",
                    LoadedBy(answer));
    case BindAnswer::kNotBound: {
      std::string loaded;
      for (const auto& [known, path] : answer.bound)
        loaded += (loaded.empty() ? "'" : ", '") + known + "'";
      return Sglang(
          400,
          "LoRA with name " + name + " does not exist. Loaded LoRAs: odict_keys([" + loaded + "])",
          nullptr);
    }
    case BindAnswer::kNoDirectory:
    case BindAnswer::kRefused:
      break;
  }
  return Sglang(400, "Failed to load LoRA adapter " + name + ": " + Why(answer), LoadedBy(answer));
}

// What another try may meet otherwise.
bool IsPassing(const AnswerBinding& answer) {
  constexpr std::string_view kPassing[] = {"BIND_TIMEOUT", "NO_SLOT",           "ENGINE_WEDGED",
                                           "DISK_FULL",    "DIRECTORY_CHANGED", "FETCH_FAILED"};
  return std::ranges::find(kPassing, answer.reason) != std::end(kPassing);
}

CallReply VllmAnswer(const AnswerBinding& answer, Verb verb) {
  const std::string& name = answer.client_name;
  switch (answer.answer) {
    case BindAnswer::kDone:
      return {200, std::string(kText),
              "Success: LoRA adapter '" + name +
                  (verb == Verb::kUnload ? "' removed successfully." : "' added successfully.")};
    case BindAnswer::kAlreadyLoaded:
      return Vllm(400, "InvalidUserInput",
                  "The lora adapter '" + name +
                      "' has already been loaded. If you want to load the adapter in place, set "
                      "'load_inplace' to True.");
    case BindAnswer::kNotBound:
      return Vllm(404, "NotFoundError", "The lora adapter '" + name + "' cannot be found.");
    case BindAnswer::kNoDirectory:
      return Vllm(404, "NotFoundError",
                  "Loading lora " + name + " failed: No adapter found for " + answer.path);
    case BindAnswer::kRefused:
      break;
  }
  return IsPassing(answer)
             ? Vllm(503, "ServiceUnavailable", "Call to add_lora method failed: " + Why(answer))
             : Vllm(400, "InvalidUserInput", "Call to add_lora method failed: " + Why(answer));
}

// The servers of TRL and SkyRL are FastAPI's, whose errors have one field.
CallReply FastApiAnswer(const AnswerBinding& answer, Json done) {
  if (answer.answer == BindAnswer::kDone) return {200, std::string(kJson), Dump(done)};
  return {IsPassing(answer) ? 503 : 400, std::string(kJson), Dump({{"detail", Why(answer)}})};
}

// prime-rl tries again after a 404 and a 500, and after nothing else.
CallReply PrimeAnswer(const AnswerBinding& answer) {
  if (answer.answer == BindAnswer::kDone) return {200, std::string(kJson), R"({"status":"ok"})"};
  if (answer.answer == BindAnswer::kRefused && IsPassing(answer))
    return Vllm(500, "InternalServerError", "Call to add_lora method failed: " + Why(answer));
  return VllmAnswer(answer, Verb::kLoad);
}

}  // namespace

std::optional<std::variant<BindCall, Refused>> ReadBindCall(const door::EngineCall& call) {
  const Spelling* spelling = Find(call);
  if (spelling == nullptr) return std::nullopt;
  const auto body = door::PaddedBody::Lent(call.body);
  const auto fields = door::ObjectFields(body);
  if (!fields.ok()) return Invalid(std::string(ToStd(fields.status().message())));
  std::optional<std::string> name = TextOf(body, *fields, "lora_name");
  std::optional<std::string> path = TextOf(body, *fields, "lora_path");
  if (spelling->verb == Verb::kTrlLoad) name = std::string(kTrlName);
  if (!name.has_value() || name->empty()) return Invalid("lora_name must be a text");
  if (spelling->verb == Verb::kLoadTensors) {
    return BindCall(proxy::BindAsked{
        .client_name = *std::move(name), .path = proxy::kTensorsPath, .as_tensors = true});
  }
  if (spelling->verb == Verb::kUnload) return BindCall(proxy::UnbindAsked{0, *std::move(name)});
  if (!path.has_value() || path->empty()) {
    return spelling->engine == EngineKind::kVllm
               ? Invalid("Both 'lora_name' and 'lora_path' must be provided.")
               : Invalid("lora_path must be a text");
  }
  const door::JsonField* in_place = door::FindField(*fields, "load_inplace");
  const bool replaces = spelling->verb != Verb::kLoad ||
                        (in_place != nullptr && body.Text(in_place->value) == "true");
  return BindCall(proxy::BindAsked{0, *std::move(name), *std::move(path), replaces, false});
}

// art/serving_capabilities.py of openpipe-art 0.5.23: with this it loads each step under a name of its
// own, and says load_inplace where it loads one again.
std::optional<CallReply> ReplyAtOnce(const door::EngineCall& call) {
  if (call.engine != EngineKind::kVllm || call.path != "/art/capabilities") return std::nullopt;
  return CallReply{200, std::string(kJson),
                   Dump({{"runtime", "openai_compatible"},
                         {"protocol_version", 0},
                         {"inplace_lora_load", true}})};
}

proxy::Event EventOf(const BindCall& call, uint64_t ticket) {
  return std::visit(
      [&](auto asked) -> proxy::Event {
        asked.ticket = ticket;
        return asked;
      },
      call);
}

door::CallAnswer AnswerTo(const door::EngineCall& call, const AnswerBinding& answer) {
  const Spelling* spelling = Find(call);
  if (call.engine == EngineKind::kSglang || spelling == nullptr) return SglangAnswer(answer);
  switch (spelling->verb) {
    case Verb::kTrlLoad:
      return FastApiAnswer(answer, {{"status", "success"}, {"lora_int_id", answer.order}});
    case Verb::kSkyrlLoad:
      return FastApiAnswer(
          answer,
          {{"status", "ok"}, {"lora_name", answer.client_name}, {"lora_int_id", answer.order}});
    case Verb::kPrimeLoad:
      return PrimeAnswer(answer);
    case Verb::kLoad:
    case Verb::kLoadTensors:
    case Verb::kUnload:
      break;
  }
  return VllmAnswer(answer, spelling->verb);
}

}  // namespace lorry::calls
