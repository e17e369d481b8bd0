#include "services/engine_proxy/door/routes.h"

#include <span>
#include <utility>

namespace lorry::door {
namespace {

using fleet::EngineKind;
constexpr auto kPass = RouteAction::kPass;
constexpr auto kRewrite = RouteAction::kRewrite;
constexpr auto kRefuse = RouteAction::kRefuse;
constexpr auto kCall = RouteAction::kCall;
constexpr auto kPassCall = RouteAction::kPassCall;

// Its tensors come with weight updates, past the door.
constexpr std::string_view kRegister =
    "its weights would reach the engine unseen; write the adapter to a directory and name it to "
    "/load_lora_adapter, or publish the version with lorry";
constexpr std::string_view kArealXccl =
    "its weights would reach the engine unseen; let AReaL update by way of the disk, which names a "
    "directory to /v1/load_lora_adapter";
constexpr std::string_view kVllmTensors =
    "vLLM has no such call; write the adapter to a directory and name it to "
    "/v1/load_lora_adapter, or publish the version with lorry";
constexpr std::string_view kSkyrlGenerate =
    "SkyRL's own server answers it for the base model, whatever `model` says, and not at all "
    "beside "
    "adapters; ask /inference/v1/generate, without enable_return_routed_experts";
constexpr std::string_view kMultipart =
    "the door reads the adapter from a JSON body, which an upload of a file does not have";
// vLLM wraps it in inject_adapter_id(adapter_path="model") (vllm/entrypoints/serve/sagemaker): the
// header X-Amzn-SageMaker-Adapter-Identifier then beats the body's `model`.
constexpr std::string_view kInvocations =
    "a header may name another adapter there than the body does; send the same body to its own "
    "route, such as /v1/chat/completions";

constexpr std::string_view kFromTensors = "/load_lora_adapter_from_tensors";

constexpr Route kSglang[] = {
    {"POST,PUT", "/generate", kRewrite, BodyShape::kGenerate},
    {"POST", "/v1/completions", kRewrite, BodyShape::kCompletion},
    {"POST", "/v1/chat/completions", kRewrite, BodyShape::kChat},
    {"POST", "/invocations", kRewrite, BodyShape::kChat},
    {"POST", "/v1/messages", kRewrite, BodyShape::kMessages},
    {"POST", "/v1/embeddings", kRewrite, BodyShape::kEmbedding},
    {"POST,PUT", "/encode", kRewrite, BodyShape::kEncode},
    {"POST,PUT", "/classify", kRewrite, BodyShape::kEncode},
    {"POST", "/v1/responses", kRewrite, BodyShape::kBaseOnly},
    {"POST", "/v1/score", kRewrite, BodyShape::kBaseOnly},
    {"POST,PUT", "/v1/rerank", kRewrite, BodyShape::kBaseOnly},
    {"POST", "/v1/classify", kRewrite, BodyShape::kBaseOnly},
    {"POST", "/v1/audio/transcriptions", kRefuse, BodyShape::kNone, kMultipart},
    {"POST", "/v1/messages/count_tokens", kPass},
    {"POST", "/tokenize", kPass},
    {"POST", "/v1/tokenize", kPass},
    {"POST", "/detokenize", kPass},
    {"POST", "/v1/detokenize", kPass},
    {"GET", "/v1/models", RouteAction::kModels},
    {"GET", "/v1/models/{id}", RouteAction::kModel},
    {"GET,HEAD", "/ready", RouteAction::kHealth},
    {"GET,HEAD", "/health", RouteAction::kHealth},
    {"GET,HEAD", "/health_generate", RouteAction::kHealth},
    {"GET,HEAD", "/ping", RouteAction::kHealth},
    {"GET", "/server_info", RouteAction::kServerInfo},
    {"GET", "/get_server_info", RouteAction::kServerInfo},
    {"GET", "/model_info", kPass},
    {"GET", "/get_model_info", kPass},
    {"GET", "/v1/loads", kPass},
    {"GET", "/get_load", kPass},
    {"GET", "/metrics", kPass},
    {"POST", "/abort_request", RouteAction::kAbort},
    {"POST", "/load_lora_adapter", kCall},
    {"POST", kFromTensors, kCall},
    {"POST", "/register_lora_adapter", kRefuse, BodyShape::kNone, kRegister},
    {"POST", "/unload_lora_adapter", kCall},
    {"POST", "/pause_generation", kCall},
    {"POST", "/continue_generation", kCall},
    {"GET,POST", "/flush_cache", kPassCall},
    {"GET,POST", "/release_memory_occupation", kCall},
    {"GET,POST", "/resume_memory_occupation", kCall},
    {"POST", "/update_weights_from_disk", kCall},
    {"POST", "/update_weights_from_tensor", kCall},
    {"POST", "/update_weights_from_distributed", kCall},
    {"POST", "/update_weights_from_ipc", kCall},
    {"POST", "/init_weights_update_group", kPassCall},
    {"POST", "/destroy_weights_update_group", kPassCall},
    {"POST", "/update_weight_version", RouteAction::kLabel},
};

constexpr Route kVllm[] = {
    {"POST", "/v1/completions", kRewrite, BodyShape::kCompletion},
    {"POST", "/v1/chat/completions", kRewrite, BodyShape::kChat},
    {"POST", "/v1/responses", kRewrite, BodyShape::kResponses},
    {"POST", "/v1/chat/completions/batch", kRewrite, BodyShape::kChatBatch},
    {"POST", "/v1/messages", kRewrite, BodyShape::kChat},
    {"POST", "/v1/messages/count_tokens", kRewrite, BodyShape::kTokens},
    {"POST", "/inference/v1/generate", kRewrite, BodyShape::kChat},
    {"POST", "/tokenize", kRewrite, BodyShape::kTokens},
    {"POST", "/detokenize", kRewrite, BodyShape::kTokens},
    {"POST", "/pooling", kRewrite, BodyShape::kPooling},
    {"POST", "/classify", kRewrite, BodyShape::kPooling},
    {"POST", "/score", kRewrite, BodyShape::kScore},
    {"POST", "/v1/score", kRewrite, BodyShape::kScore},
    {"POST", "/rerank", kRewrite, BodyShape::kScore},
    {"POST", "/v1/rerank", kRewrite, BodyShape::kScore},
    {"POST", "/v2/rerank", kRewrite, BodyShape::kScore},
    {"POST", "/generative_scoring", kRewrite, BodyShape::kScore},
    {"POST", "/v1/embeddings", kRewrite, BodyShape::kPooling},
    {"POST", "/v2/embed", kRewrite, BodyShape::kInputs},
    {"POST", "/invocations", kRefuse, BodyShape::kNone, kInvocations},
    {"POST", "/v1/audio/transcriptions", kRefuse, BodyShape::kNone, kMultipart},
    {"POST", "/v1/audio/translations", kRefuse, BodyShape::kNone, kMultipart},
    {"GET", "/v1/models", RouteAction::kModels},
    {"GET", "/v1/models/{id}", RouteAction::kModel},
    {"GET,HEAD", "/health", RouteAction::kHealth},
    {"GET,HEAD,POST", "/ping", RouteAction::kHealth},
    {"GET", "/server_info", RouteAction::kServerInfo},
    {"GET", "/get_world_size", kPass},
    {"GET", "/weight_info", kPass},
    {"GET", "/tokenizer_info", kPass},
    {"GET", "/version", kPass},
    {"GET", "/load", kPass},
    {"GET", "/metrics", kPass},
    {"GET", "/is_paused", kPass},
    {"GET", "/is_sleeping", kPass},
    {"POST", "/v1/load_lora_adapter", kCall},
    {"POST", "/v1/unload_lora_adapter", kCall},
    {"POST", kFromTensors, kRefuse, BodyShape::kNone, kVllmTensors},
    {"POST", "/load_lora_adapter/", kCall},
    {"POST", "/load_lora_adapter", kCall},
    {"POST", "/skyrl/v1/load_lora_adapter", kCall},
    {"POST", "/fetch_weights", kPassCall},
    {"POST", "/skyrl/v1/generate", kRefuse, BodyShape::kNone, kSkyrlGenerate},
    {"GET", "/art/capabilities", kCall},
    {"POST", "/pause", kCall},
    {"POST", "/resume", kCall},
    {"POST", "/areal_pause_generation", kCall},
    {"POST", "/areal_continue_generation", kCall},
    {"POST", "/areal_update_weights", kCall},
    {"POST", "/areal_update_weights_xccl", kCall},
    {"POST", "/areal_init_weights_update_group", kPassCall},
    {"POST", "/areal_set_update_weight_meta", kPassCall},
    {"POST", "/areal_set_update_weight_meta_lora", kRefuse, BodyShape::kNone, kArealXccl},
    {"POST", "/areal_update_weights_lora", kRefuse, BodyShape::kNone, kArealXccl},
    {"POST", "/areal_update_weights_lora_xccl", kRefuse, BodyShape::kNone, kArealXccl},
    {"POST", "/reset_prefix_cache", kPassCall},
    {"POST", "/abort_requests", kRefuse, BodyShape::kNone, "close the request's own connection"},
    {"POST", "/sleep", kCall},
    {"POST", "/wake_up", kCall},
    {"POST", "/collective_rpc", kCall},
    {"POST", "/init_weight_transfer_engine", kPassCall},
    {"POST", "/update_weight_version", kPassCall},
    {"POST", "/start_weight_update", kCall},
    {"POST", "/update_weights", kCall},
    {"POST", "/finish_weight_update", kCall},
};

std::span<const Route> TableFor(EngineKind kind) {
  switch (kind) {
    case EngineKind::kSglang:
      return kSglang;
    case EngineKind::kVllm:
      return kVllm;
    case EngineKind::kUnknown:
      break;
  }
  return {};
}

bool IsPath(const Route& route, std::string_view path) {
  const size_t brace = route.path.find('{');
  if (brace == std::string_view::npos) return route.path == path;
  return path.size() > brace && path.substr(0, brace) == route.path.substr(0, brace);
}

bool Allows(std::string_view methods, std::string_view method) {
  while (!methods.empty()) {
    const size_t comma = methods.find(',');
    if (methods.substr(0, comma) == method) return true;
    if (comma == std::string_view::npos) break;
    methods.remove_prefix(comma + 1);
  }
  return false;
}

// What an ASGI server turns into another path, or a router redirects.
bool HasSecondReading(std::string_view path) {
  return path.find('%') != std::string_view::npos || path.find("//") != std::string_view::npos ||
         path.find("/.") != std::string_view::npos || path.find('\\') != std::string_view::npos ||
         path.find(';') != std::string_view::npos;
}

RouteChoice Refuse(int status, std::string message) {
  return {RouteAction::kRefuse, BodyShape::kNone, status, std::move(message)};
}

}  // namespace

bool CarriesTensors(std::string_view method, std::string_view path) {
  return method == "POST" && path == kFromTensors;
}

RouteChoice ChooseRoute(EngineKind kind, std::string_view method, std::string_view path,
                        RoutesAllowed allowed) {
  if (kind == EngineKind::kUnknown && path == "/health") return {RouteAction::kHealth};
  const Route* of_path = nullptr;
  for (const Route& route : TableFor(kind)) {
    if (!IsPath(route, path)) continue;
    of_path = &route;
    if (!Allows(route.methods, method)) continue;
    const bool is_call =
        route.action == kCall || route.action == kPassCall || route.action == RouteAction::kLabel;
    if (is_call && !allowed.calls) {
      return Refuse(403, std::string(path) +
                             " changes the engine for everybody, and this door takes no such call; "
                             "start the proxy with --framework-calls=on where its clients may");
    }
    if (route.action != kRefuse) return {route.action, route.shape};
    return Refuse(
        403, std::string(path) + " is not for clients of this door: " + std::string(route.remedy));
  }
  if (of_path != nullptr) {
    return Refuse(405, std::string(path) + " is asked by " + std::string(of_path->methods));
  }
  if (HasSecondReading(path)) {
    return Refuse(403, "paths are taken literally here; write the route without escapes or dots");
  }
  if (allowed.unknown && kind != EngineKind::kUnknown) return {RouteAction::kPass};
  return Refuse(
      403,
      std::string(path.substr(0, 128)) +
          " is no route of this door, it might reach the base model; if that is meant, start the "
          "proxy with --door-allow-unknown-routes");
}

}  // namespace lorry::door
