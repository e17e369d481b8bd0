#include "services/engine_proxy/engines/wire.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "lib/base/error.h"
#include "lib/base/strings.h"
#include "lib/base/utf8.h"

namespace lorry::engines {
namespace {

// Long enough for every text the engines are known to give, short enough for a log line.
constexpr size_t kMaxErrorTextBytes = 500;

constexpr std::string_view kVllmLoadFailed = "Call to add_lora method failed";

// What engines say of a load that fails, and not because of the adapter: the files are not there for
// them, or there is no memory. SGLang takes a path that it does not find for a repository's name.
// "(os error " ends whatever the system refuses to safetensors, which is written in Rust; torch says
// "can't allocate memory" of the host's, where both engines keep adapters.
constexpr std::string_view kNotOfTheAdapter[] = {
    "Repo id must be",   "[Errno ",       "(os error ",  "No such file",         "No adapter found",
    "Permission denied", "out of memory", "OutOfMemory", "can't allocate memory"};

// SGLang puts it in error_message (LoRA routes), message (OpenAI routes) or error.message
// (/generate); vLLM in error.message, error (pause routes) or detail (no such route).
std::string RawErrorText(const Json& body) {
  const Json& error = MemberOf(body, "error");
  if (error.is_object()) return StringIn(error, "message");
  for (const char* key : {"error", "error_message", "message", "detail"}) {
    if (std::string text = StringIn(body, key); !text.empty()) return text;
  }
  return "";
}

}  // namespace

Json ParseJson(std::string_view text) { return Json::parse(text, nullptr, false); }

const Json& MemberOf(const Json& object, const char* key) {
  static const Json* const kNone = new Json(Json::value_t::null);
  if (!object.is_object()) return *kNone;
  const auto found = object.find(key);
  return found == object.end() ? *kNone : *found;
}

std::string StringIn(const Json& object, const char* key) {
  const Json& member = MemberOf(object, key);
  return member.is_string() ? member.get<std::string>() : std::string();
}

std::optional<int64_t> IntegerIn(const Json& object, const char* key) {
  const Json& member = MemberOf(object, key);
  if (!member.is_number_integer()) return std::nullopt;
  return member.get<int64_t>();
}

uint32_t CountIn(const Json& object, const char* key) {
  const int64_t value = IntegerIn(object, key).value_or(0);
  return static_cast<uint32_t>(std::clamp<int64_t>(value, 0, UINT32_MAX));
}

std::vector<std::string> NamesIn(const Json& object, const char* key) {
  std::vector<std::string> names;
  const Json& list = MemberOf(object, key);
  if (!list.is_array()) return names;
  for (const Json& name : list) {
    if (name.is_string()) names.push_back(name.get<std::string>());
  }
  std::sort(names.begin(), names.end());
  return names;
}

bool BoolIn(const Json& object, const char* key) {
  const Json& member = MemberOf(object, key);
  return member.is_boolean() && member.get<bool>();
}

std::string ErrorText(const HttpReply& reply) {
  std::string text = RawErrorText(ParseJson(reply.body));
  if (text.empty()) text = reply.body;
  if (text.empty()) text = absl::StrCat("HTTP status ", reply.status);
  const bool is_cut = text.size() > kMaxErrorTextBytes;
  return Utf8(text, kMaxErrorTextBytes) + (is_cut ? "..." : "");
}

absl::Status StatusOfRefusal(std::string_view what, const HttpReply& reply) {
  const std::string text = ErrorText(reply);
  if (reply.status == 401 || reply.status == 403) {
    return Error(
        absl::StatusCode::kUnauthenticated, "ENGINE_UNAUTHORIZED",
        absl::StrCat(ToAbsl(what),
                     ": the engine wants another key: give the proxy a file with its API key by "
                     "--engine-key-file, with SGLang's admin key by --engine-admin-key-file (",
                     text, ")"));
  }
  if (absl::StrContains(text, "LoRA is not enabled")) {
    const bool vllm = absl::StrContains(text, "Use --enable-lora");
    return ToStatus(LoraDisabled(vllm ? fleet::EngineKind::kVllm : fleet::EngineKind::kSglang));
  }
  return Error(absl::StatusCode::kInvalidArgument, "ENGINE_REFUSED",
               absl::StrCat(ToAbsl(what), ": the engine answered ", reply.status, ": ", text));
}

absl::Status StatusOfLoad(const EngineName& name, const HttpReply& reply) {
  const std::string text = ErrorText(reply);
  const auto says = [&](std::string_view words) { return absl::StrContains(text, ToAbsl(words)); };
  const auto failed = [&](absl::StatusCode code, std::string_view reason, std::string_view why) {
    return Error(code, reason, absl::StrCat("load ", name.value, ": ", ToAbsl(why), text));
  };
  if (std::any_of(std::begin(kNotOfTheAdapter), std::end(kNotOfTheAdapter), says)) {
    return failed(absl::StatusCode::kFailedPrecondition, "ENGINE_LOAD_FAILED",
                  "the engine cannot read the files, or has no memory for them: ");
  }
  // vLLM answers 500 to whatever its worker raised while it read the adapter.
  if (reply.status >= 500 && !says(kVllmLoadFailed)) {
    return failed(absl::StatusCode::kInternal, "ENGINE_FAILED", "the engine failed: ");
  }
  return StatusOfRefusal("load " + name.value, reply);
}

bool WasShed(fleet::EngineKind kind, const HttpReply& reply) {
  if (reply.status == 503) return true;
  if (reply.status != 200) return false;
  const Json body = ParseJson(reply.body);
  if (kind == fleet::EngineKind::kSglang) {
    const Json& finish = MemberOf(MemberOf(body, "meta_info"), "finish_reason");
    return StringIn(finish, "type") == "abort";
  }
  const Json& choices = MemberOf(body, "choices");
  return choices.is_array() && std::ranges::any_of(choices, [](const Json& choice) {
           return StringIn(choice, "finish_reason") == "abort";
         });
}

absl::Status NoToken(const HttpReply& reply) {
  return Error(absl::StatusCode::kFailedPrecondition, "PROBE_FAILED",
               absl::StrCat("the engine answered without a token: ", ErrorText(reply)));
}

bool SaysNotFinite(const HttpReply& reply) {
  return reply.status >= 400 && absl::StrContains(ErrorText(reply), "not JSON compliant");
}

absl::Status StatusOfProbe(const HttpReply& reply) {
  if (SaysNotFinite(reply)) {
    return Error(absl::StatusCode::kInvalidArgument, "PROBE_NOT_FINITE",
                 absl::StrCat("the engine's log-probabilities are no numbers: ", ErrorText(reply)));
  }
  if (reply.status < 500) return StatusOfRefusal("probe", reply);
  return Error(absl::StatusCode::kInternal, "ENGINE_FAILED",
               absl::StrCat("probe: the engine failed: ", ErrorText(reply)));
}

absl::StatusOr<Models> ParseModels(const HttpReply& reply) {
  if (reply.status != 200) return StatusOfRefusal("GET /v1/models", reply);
  const Json body = ParseJson(reply.body);
  const Json& data = MemberOf(body, "data");
  if (!data.is_array()) {
    return Error(absl::StatusCode::kFailedPrecondition, "ENGINE_UNKNOWN",
                 "GET /v1/models lists no models; is this an SGLang or vLLM server?");
  }
  Models models;
  for (const Json& card : data) {
    const std::string id = StringIn(card, "id");
    if (!StringIn(card, "parent").empty()) {
      models.adapters[EngineName(id)] = StringIn(card, "root");
      continue;
    }
    if (models.base_models.empty()) {
      models.owned_by = StringIn(card, "owned_by");
      models.root = StringIn(card, "root");
    }
    models.base_models.push_back(id);
  }
  return models;
}

bool IsMissingRoute(const HttpReply& reply) {
  return reply.status == 404 && StringIn(ParseJson(reply.body), "detail") == "Not Found";
}

bool IsUnknownAdapter(fleet::EngineKind kind, const HttpReply& reply) {
  const std::string text = ErrorText(reply);
  if (kind == fleet::EngineKind::kSglang) {
    return reply.status == 400 && (absl::StrContains(text, "does not exist. Loaded LoRAs") ||
                                   absl::StrContains(text, "never been loaded") ||
                                   absl::StrContains(text, "are not loaded"));
  }
  return reply.status == 404 && !IsMissingRoute(reply);
}

bool IsAlreadyLoaded(const HttpReply& reply) {
  const std::string text = ErrorText(reply);
  return reply.status == 400 && (absl::StrContains(text, "already loaded") ||
                                 absl::StrContains(text, "already been loaded"));
}

bool IsHalfUnloaded(const HttpReply& reply) {
  return reply.status == 400 && absl::StrContains(ErrorText(reply), "has an incomplete unload");
}

Problem LoraDisabled(fleet::EngineKind kind) {
  if (kind == fleet::EngineKind::kSglang) {
    return {"ENGINE_LORA_DISABLED",
            "start SGLang with --enable-lora --max-lora-rank RANK --lora-target-modules all (or "
            "the modules that your adapters train)"};
  }
  return {"ENGINE_LORA_DISABLED",
          "start vLLM with --enable-lora --max-lora-rank RANK --max-loras N --max-cpu-loras M, and "
          "with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 in its environment, without which it loads none "
          "while it runs"};
}

Problem RuntimeLoraDisabled() {
  return {"ENGINE_RUNTIME_LORA_DISABLED",
          "start vLLM with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 in its environment"};
}

Problem DevModeOff() {
  return {"ENGINE_DEV_MODE_OFF",
          "start vLLM with VLLM_SERVER_DEV_MODE=1 in its environment; without it --max-lora-rank, "
          "--max-cpu-loras and the modules are unknown here, so that what does not fit is found "
          "out by the load, and only AReaL's server can be paused"};
}

Problem MetricsDisabled() {
  return {"ENGINE_METRICS_DISABLED",
          "start vLLM without --disable-log-stats; without its count of requests no adapter is "
          "ever unloaded"};
}

absl::Status ToStatus(const Problem& problem) {
  return Error(absl::StatusCode::kFailedPrecondition, problem.reason, problem.remedy);
}

End EndOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return End::kOk;
    case absl::StatusCode::kInvalidArgument:
      return End::kRefused;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kAborted:
      return End::kUnsent;
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kInternal:
      return End::kBroken;
    case absl::StatusCode::kDeadlineExceeded:
      return End::kTimedOut;
    default:
      return End::kFailed;
  }
}

}  // namespace lorry::engines
