#include "tests/fuzz/proxy/scripted_vllm.h"

#include <nlohmann/json.hpp>
#include <utility>

namespace lorry::proxy::fuzz {
namespace {

using door::testing::JsonReply;
using Json = nlohmann::json;

std::string TextIn(const Json& object, const char* key) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

const Json kConfig = {
    {"vllm_config",
     {{"device_config", {{"device", "cuda"}}},
      {"lora_config", {{"max_lora_rank", 16}, {"max_loras", 2}, {"max_cpu_loras", 4}}}}}};

}  // namespace

ScriptedVllm::ScriptedVllm()
    : engine_([this](const auto& request, auto& wire) { return Answer(request, wire); }) {}

void ScriptedVllm::Plan(std::string bytes) {
  MutexLock lock(mutex_);
  planned_.push_back(std::move(bytes));
}

void ScriptedVllm::Restart() {
  MutexLock lock(mutex_);
  ++boot_;
  loaded_.clear();
}

bool ScriptedVllm::Answer(const door::testing::Message& request, door::testing::Wire& wire) {
  std::string planned;
  {
    MutexLock lock(mutex_);
    if (!planned_.empty()) {
      planned = std::move(planned_.front());
      planned_.pop_front();
    }
  }
  if (!planned.empty()) {
    wire.Send(planned);
    return false;
  }
  return wire.Send(Reply(request.path(), request));
}

std::string ScriptedVllm::Models() {
  Json data = Json::array({{{"id", "base"}, {"object", "model"}, {"owned_by", "vllm"}}});
  for (const auto& [name, path] : loaded_) {
    data.push_back({{"id", name}, {"object", "model"}, {"root", path}, {"parent", "base"}});
  }
  return Json({{"object", "list"}, {"data", data}}).dump();
}

std::string ScriptedVllm::Reply(const std::string& path, const door::testing::Message& request) {
  const Json body = Json::parse(request.body, nullptr, /*allow_exceptions=*/false);
  MutexLock lock(mutex_);
  if (path == "/metrics") {
    return JsonReply("process_start_time_seconds " + std::to_string(boot_) +
                     "\n# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 0\n"
                     "vllm:num_requests_waiting 0\n# TYPE vllm:lora_requests_info gauge\n"
                     "vllm:engine_sleep_state{sleep_state=\"awake\"} 1\n");
  }
  if (path == "/version") return JsonReply(R"({"version":"0.32.0"})");
  if (path == "/v1/models") return JsonReply(Models());
  if (path.starts_with("/server_info")) return JsonReply(kConfig.dump());
  if (path == "/v1/load_lora_adapter") {
    if (request.head.starts_with("GET")) return JsonReply("{}", 405);
    loaded_[TextIn(body, "lora_name")] = TextIn(body, "lora_path");
    return JsonReply("{}");
  }
  if (path == "/v1/unload_lora_adapter") {
    loaded_.erase(TextIn(body, "lora_name"));
    return JsonReply("{}");
  }
  if (path == "/v1/completions") {
    const std::string model = TextIn(body, "model");
    if (model != "base" && !loaded_.contains(model)) {
      return JsonReply(R"({"error":{"message":"no such model"}})", 404);
    }
    // The base model and an adapter answer with tokens of another probability.
    return JsonReply(
        R"({"id":"x","model":"m","usage":{"completion_tokens":1},"choices":[{"index":0,)"
        R"("text":"x","logprobs":{"token_logprobs":[)" +
        std::string(model == "base" ? "-1" : "-2") + "]}}]}");
  }
  return JsonReply("{}");
}

}  // namespace lorry::proxy::fuzz
