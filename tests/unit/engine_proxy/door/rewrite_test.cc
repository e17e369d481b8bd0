#include "services/engine_proxy/door/rewrite.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "lib/base/error.h"

namespace lorry::door {
namespace {

using fleet::EngineKind;

const EngineFacts kEngine{.base_models = {"base", "org/Base-7B", "s3://qwen:7b"}};
constexpr auto kGenerate = BodyShape::kGenerate;
constexpr auto kChat = BodyShape::kChat;
constexpr auto kCompletion = BodyShape::kCompletion;

// The adapters that the body names, joined by '|', or the reason of the refusal.
std::string Named(EngineKind kind, BodyShape shape, const std::string& text) {
  const PaddedBody body(text);
  const auto facts = ReadBody(kind, shape, kEngine, body);
  if (!facts.ok()) return ReasonOf(facts.status());
  std::string out;
  for (size_t i = 0; i < facts->adapters.size(); ++i) {
    out += (i == 0 ? "" : "|") + facts->adapters[i];
  }
  return out;
}

TEST(ReadBody, KeepsTheNameOfTheBaseModelThatItWasAskedBy) {
  const auto base = [](EngineKind kind, const std::string& text) {
    return ReadBody(kind, kCompletion, kEngine, PaddedBody(text))->base_model;
  };
  EXPECT_EQ(base(EngineKind::kVllm, R"({"model":"org/Base-7B"})"), "org/Base-7B");
  EXPECT_EQ(base(EngineKind::kSglang, R"({"model":"base"})"), "base");
  for (const std::string text : {R"({"model":"policy"})", R"({"model":""})", R"({"model":null})",
                                 "{}", R"({"model":"default"})"})
    EXPECT_EQ(base(EngineKind::kSglang, text), "") << text;
}

// The body after each reference X was resolved to the engine name X!.
std::string Rewritten(EngineKind kind, BodyShape shape, const std::string& text,
                      const EngineFacts& engine = kEngine) {
  const PaddedBody body(text);
  const auto facts = ReadBody(kind, shape, engine, body);
  if (!facts.ok()) return facts.status().ToString();
  std::vector<Resolved> resolved;
  for (const std::string& adapter : facts->adapters) {
    const bool base = adapter.empty() || adapter == "@base";
    resolved.push_back({.name = EngineName(base ? "" : adapter + "!")});
  }
  std::vector<std::string> ids = {"ID0"};
  for (size_t i = 1; i < facts->batch; ++i) ids.push_back("ID" + std::to_string(i));
  return ApplyEdits(body.view(), RewriteEdits(kind, shape, engine, *facts, resolved, ids));
}

TEST(Rewrite, FindsTheAdapterWhereverItIsNamed) {
  for (const auto& [text, adapter] : std::vector<std::pair<std::string, std::string>>{
           {R"({"model":"policy"})", "policy"},
           {R"({"model":"base"})", ""},
           {R"({"model":"default"})", ""},
           {R"({"model":""})", ""},
           {R"({"model":null})", ""},
           {R"({})", ""},
           {R"({"model":"base:policy@eval"})", "policy@eval"},
           {R"({"model":"any/thing:policy"})", "policy"},
           {R"({"model":"s3://qwen:7b"})", ""},
           {R"({"model":"s3://qwen:7b:policy"})", "policy"},
           {R"({"model":"base","lora_path":"policy"})", "policy"},
           {R"({"lora_path":"policy"})", "policy"},
           {R"({"lora_path":""})", ""},
           {R"({"lora_path":null,"model":"policy"})", "policy"},
           {R"({"model":"policy","lora_path":"policy"})", "policy"},
           {R"({"model":"policy","lora_path":"critic"})", "REQUEST_INVALID"},
           {R"({"model":7})", "REQUEST_INVALID"},
           {R"({"lora_path":{}})", "REQUEST_INVALID"},
           {R"({"model":"policy","mod\u0065l":"base"})", "REQUEST_INVALID"},
       }) {
    EXPECT_EQ(Named(EngineKind::kSglang, kChat, text), adapter) << text;
  }
  EXPECT_EQ(Named(EngineKind::kVllm, kChat, R"({"model":"org/Base-7B"})"), "");
  EXPECT_EQ(Named(EngineKind::kVllm, kChat, R"({"model":"base:policy"})"), "base:policy")
      << "a framework may have given that name";
  EXPECT_EQ(Named(EngineKind::kVllm, kChat, R"({"model":"odd:policy"})"), "odd:policy");
  EXPECT_EQ(Named(EngineKind::kVllm, kChat, R"({"lora_path":["a"]})"), "REQUEST_INVALID");
}

// vLLM answers it at once and generates behind the door's count, and the door fetches no response.
TEST(Rewrite, RefusesResponsesInTheBackground) {
  const auto named = [](const std::string& value) {
    return Named(EngineKind::kVllm, BodyShape::kResponses,
                 R"({"model":"policy","background":)" + value + "}");
  };
  EXPECT_EQ(named("true"), "REQUEST_INVALID");
  EXPECT_EQ(named("1"), "REQUEST_INVALID");
  EXPECT_EQ(named("false"), "policy");
  EXPECT_EQ(named("null"), "policy");
}

TEST(Rewrite, ReadsBatches) {
  EXPECT_EQ(Named(EngineKind::kSglang, kGenerate,
                  R"({"text":["a","b","c"],"lora_path":["x",null,"y@2"]})"),
            "x|@base|y@2")
      << "null beside names is the base model, as at the engine";
  EXPECT_EQ(Named(EngineKind::kSglang, kGenerate, R"({"text":["a"],"lora_path":["x","y"]})"),
            "REQUEST_INVALID");
  EXPECT_EQ(Named(EngineKind::kSglang, kGenerate, R"({"text":"a","lora_path":["x"]})"),
            "REQUEST_INVALID");
  EXPECT_EQ(Named(EngineKind::kSglang, kGenerate, R"({"text":["a"],"lora_path":[1]})"),
            "REQUEST_INVALID");
}

TEST(Rewrite, RoutesSglangByLoraPathAlone) {
  EXPECT_EQ(Rewritten(EngineKind::kSglang, kGenerate,
                      R"({"text":"a", "lora_path": "policy" ,"sampling_params":{"t":1.50}})"),
            R"({"rid":"ID0","text":"a", "lora_path": "policy!" ,"sampling_params":{"t":1.50}})");
  EXPECT_EQ(Rewritten(EngineKind::kSglang, kChat, R"({"model":"policy","messages":[]})"),
            R"({"lora_path":"policy!","rid":"ID0","model":"base","messages":[]})");
  EXPECT_EQ(Rewritten(EngineKind::kSglang, kChat, R"({"model":"org/Base-7B:policy"})"),
            R"({"lora_path":"policy!","rid":"ID0","model":"base"})");
  EXPECT_EQ(Rewritten(EngineKind::kSglang, kChat,
                      R"({"rid":"mine","model":"org/Base-7B","lora_path":"policy"})"),
            R"({"rid":"ID0","model":"org/Base-7B","lora_path":"policy!"})");
  EXPECT_EQ(Rewritten(EngineKind::kSglang, kGenerate, "{}"), R"({"lora_path":null,"rid":"ID0"})");
  EXPECT_EQ(Rewritten(EngineKind::kSglang, kCompletion, " { }"),
            R"( {"model":"base","lora_path":null,"rid":"ID0" })");
}

// An empty list names nothing: there is no first of its adapters to be resolved.
TEST(Rewrite, RefusesWhatIsEmpty) {
  for (const char* text :
       {R"({"text":"x","lora_path":[]})", R"({"text":[],"lora_path":[]})", R"({"text":[]})",
        R"({"text":[ ],"lora_path":"x"})", R"({"input_ids":[]})", R"({"lora_path":[]})",
        R"({"text":["a"],"rid":[""]})", R"({"sampling_params":{"n":0}})"}) {
    EXPECT_EQ(Named(EngineKind::kSglang, kGenerate, text), "REQUEST_INVALID") << text;
  }
  EXPECT_EQ(Named(EngineKind::kSglang, kCompletion, R"({"prompt":[],"lora_path":[]})"),
            "REQUEST_INVALID");
  EXPECT_EQ(Named(EngineKind::kSglang, BodyShape::kEmbedding, R"({"input":[]})"),
            "REQUEST_INVALID");
  const PaddedBody body(std::string(R"({"text":"x","rid":""})"));
  EXPECT_TRUE(ReadBody(EngineKind::kSglang, kGenerate, kEngine, body)->client_ids.empty());
}

// What is kept with the last requests, or repeated in replies, must not be as long as a body.
TEST(Rewrite, RefusesLongNames) {
  const auto lora_path = [](size_t size) {
    return R"({"lora_path":")" + std::string(size, 'a') + R"("})";
  };
  EXPECT_EQ(Named(EngineKind::kSglang, kGenerate, lora_path(kMaxReferenceBytes)),
            std::string(kMaxReferenceBytes, 'a'));
  EXPECT_EQ(Named(EngineKind::kSglang, kGenerate, lora_path(kMaxReferenceBytes + 1)),
            "REQUEST_INVALID");
  EXPECT_EQ(Named(EngineKind::kVllm, kChat, R"({"model":")" + std::string(300, 'a') + R"("})"),
            "REQUEST_INVALID");
  EXPECT_EQ(Named(EngineKind::kSglang, kGenerate,
                  R"({"text":["a"],"lora_path":[")" + std::string(300, 'a') + R"("]})"),
            "REQUEST_INVALID");
  EXPECT_EQ(Named(EngineKind::kSglang, kGenerate,
                  R"({"rid":")" + std::string(kMaxIdBytes + 1, 'r') + R"("})"),
            "REQUEST_INVALID");
}

TEST(Rewrite, ReadsStreamAsPydanticDoes) {
  const auto streams = [](const std::string& value) {
    const PaddedBody body(R"({"stream":)" + value + "}");
    return ReadBody(EngineKind::kSglang, kChat, kEngine, body)->stream;
  };
  for (const char* value : {"true", "1", "1.0", R"("true")", R"("YES")", R"("y")", R"("t")",
                            R"("On")", R"("1")", R"("\u0031")"}) {
    EXPECT_TRUE(streams(value)) << value;
  }
  for (const char* value : {"false", "0", "null", "2", "0.5", R"("no")", R"("off")", R"(" true")",
                            R"("")", "{}", "[]", "[1]"}) {
    EXPECT_FALSE(streams(value)) << value;
  }
}

// SGLang splits a model's name at a colon, before 0.5.19 at the first one.
TEST(Rewrite, NamesNoModelWithAColon) {
  const EngineFacts qwen{.base_models = {"qwen:7b"}};
  const auto rewritten = [&](BodyShape shape, const std::string& text) {
    return Rewritten(EngineKind::kSglang, shape, text, qwen);
  };
  EXPECT_EQ(rewritten(kChat, R"({"model":"qwen:7b:policy"})"),
            R"({"lora_path":"policy!","rid":"ID0","model":"default"})");
  EXPECT_EQ(rewritten(kChat, R"({"model":"qwen:7b"})"),
            R"({"lora_path":null,"rid":"ID0","model":"default"})");
  EXPECT_EQ(rewritten(kChat, R"({"model":"policy"})"),
            R"({"lora_path":"policy!","rid":"ID0","model":"default"})");
  EXPECT_EQ(rewritten(BodyShape::kMessages, R"({"model":"policy"})"),
            R"({"model":"default:policy!"})");
}

TEST(Rewrite, KnowsWhereEachRouteOfSglangReadsTheAdapter) {
  EXPECT_EQ(Rewritten(EngineKind::kSglang, BodyShape::kEmbedding,
                      R"({"model":"policy","input":["a","b"]})"),
            R"({"lora_path":"policy!","rid":["ID0","ID1"],"model":"base","input":["a","b"]})");
  EXPECT_EQ(Rewritten(EngineKind::kSglang, BodyShape::kEmbedding,
                      R"({"lora_path":"x","input":[{"text":"a"}]})"),
            R"({"model":"base","rid":"ID0","lora_path":"x!","input":[{"text":"a"}]})");
  EXPECT_EQ(Rewritten(EngineKind::kSglang, BodyShape::kEncode, R"({"text":"a","lora_path":"x"})"),
            R"({"rid":"ID0","text":"a","lora_path":"x!"})");
  EXPECT_EQ(Rewritten(EngineKind::kSglang, BodyShape::kMessages,
                      R"({"model":"policy","lora_path":"policy","max_tokens":1})"),
            R"({"model":"base:policy!","lora_path":null,"max_tokens":1})");
  EXPECT_EQ(Rewritten(EngineKind::kSglang, BodyShape::kBaseOnly, R"({"model":"@base","n":2})"),
            R"({"model":"base","n":2})");
  EXPECT_FALSE(CarriesAdapters(EngineKind::kSglang, BodyShape::kBaseOnly));
  EXPECT_TRUE(CarriesAdapters(EngineKind::kSglang, BodyShape::kMessages));
  EXPECT_TRUE(CarriesAdapters(EngineKind::kVllm, BodyShape::kTokens));
}

TEST(Rewrite, GivesEachOfABatchItsOwnId) {
  EXPECT_EQ(Rewritten(EngineKind::kSglang, kGenerate,
                      R"({"text":["a","b"],"lora_path":["x",null],"rid":"r"})"),
            R"({"text":["a","b"],"lora_path":["x!",null],"rid":["ID0","ID1"]})");
  EXPECT_EQ(Rewritten(EngineKind::kSglang, kGenerate, R"({"input_ids":[[1],[2]],"lora_path":"x"})"),
            R"({"rid":["ID0","ID1"],"input_ids":[[1],[2]],"lora_path":"x!"})");
  EXPECT_EQ(Rewritten(EngineKind::kSglang, kCompletion, R"({"prompt":[1,2],"lora_path":"x"})"),
            R"({"model":"base","rid":"ID0","prompt":[1,2],"lora_path":"x!"})");
}

TEST(Rewrite, NamesVllmAdaptersInModel) {
  EXPECT_EQ(Rewritten(EngineKind::kVllm, kChat, R"({"temperature":1,"model":"policy"})"),
            R"({"temperature":1,"model":"policy!"})");
  EXPECT_EQ(Rewritten(EngineKind::kVllm, kChat, R"({"model":"base"})"), R"({"model":"base"})");
  EXPECT_EQ(Rewritten(EngineKind::kVllm, kChat, R"({"lora_path":"policy"})"),
            R"({"model":"policy!","lora_path":null})");
}

TEST(Rewrite, KnowsWhatAReplyMustCallItsModel) {
  const auto model = [](EngineKind kind, BodyShape shape, const std::string& text,
                        const std::string& name = "policy-v12") {
    const PaddedBody body(text);
    const auto facts = ReadBody(kind, shape, kEngine, body);
    Resolved resolved{.name = EngineName(name)};
    if (!name.empty()) resolved.key.adapter = AdapterName("policy");
    return ReplyModel(kind, shape, kEngine, *facts, {resolved});
  };
  const auto kSglang = EngineKind::kSglang;
  const auto kVllm = EngineKind::kVllm;
  EXPECT_EQ(model(kSglang, kChat, R"({"model":"policy"})"), R"("policy")");
  EXPECT_EQ(model(kVllm, kChat, R"({"model":"polic\u0079@12"})"), R"("polic\u0079@12")");
  EXPECT_EQ(model(kSglang, kChat, R"({"model":"base:policy"})"), R"("base:policy")");
  EXPECT_EQ(model(kSglang, kChat, R"({"model":"base","lora_path":"policy"})"), "") << "unchanged";
  EXPECT_EQ(model(kVllm, kChat, R"({"model":"base"})"), R"("base")") << "no_adapter LATEST";
  EXPECT_EQ(model(kVllm, kChat, R"({"model":"base"})", ""), "");
  EXPECT_EQ(model(kVllm, kChat, R"({"model":"@base"})", ""), R"("@base")");
  EXPECT_EQ(model(kVllm, kChat, R"({"lora_path":"policy@12"})"), R"("policy@12")");
  EXPECT_EQ(model(kSglang, kCompletion, "{}"), R"("policy")");
  EXPECT_EQ(model(kSglang, kCompletion, "{}", ""), "");
  EXPECT_EQ(model(kSglang, kGenerate, R"({"lora_path":"policy"})"), "") << "it names none";
  EXPECT_EQ(model(kVllm, BodyShape::kTokens, R"({"model":"policy"})"), "");
  EXPECT_EQ(model(kSglang, BodyShape::kMessages, R"({"model":"policy"})"), R"("policy")");
}

TEST(Rewrite, FindsNWhereTheRouteKeepsIt) {
  const auto n_of = [](BodyShape shape, const std::string& text) -> uint64_t {
    const PaddedBody body(text);
    const auto facts = ReadBody(EngineKind::kSglang, shape, kEngine, body);
    return facts.ok() ? facts->n : 999;
  };
  EXPECT_EQ(n_of(kChat, R"({"n":3})"), 3u);
  EXPECT_EQ(n_of(kGenerate, R"({"n":3})"), 1u);
  EXPECT_EQ(n_of(kGenerate, R"({"sampling_params":{"n":4}})"), 4u);
  EXPECT_EQ(n_of(kGenerate, R"({"text":["a","b"],"sampling_params":[{"n":5},{"n":5}]})"), 5u);
  EXPECT_EQ(n_of(kGenerate, R"({"text":["a","b"],"sampling_params":[{"n":1},{"n":5}]})"), 999u);
  EXPECT_EQ(n_of(kGenerate, R"({"text":["a","b"],"sampling_params":[{"n":5},{}]})"), 999u);
  EXPECT_EQ(n_of(kGenerate, R"({"sampling_params":null})"), 1u);
  EXPECT_EQ(n_of(kChat, R"({"n":null})"), 1u);
  EXPECT_EQ(n_of(kChat, R"({"n":1.5})"), 999u);
  EXPECT_EQ(n_of(kChat, R"({"n":"2"})"), 999u);
  EXPECT_EQ(Rewritten(EngineKind::kSglang, kGenerate,
                      R"({"lora_path":"x","rid":"r","sampling_params":{"n": 4}})"),
            R"({"lora_path":"x!","rid":"ID0","sampling_params":{"n": 1}})");
  EXPECT_EQ(Rewritten(EngineKind::kSglang, kGenerate,
                      R"({"lora_path":"x","rid":"r","sampling_params":[{"n":4},{"n":4}]})"),
            R"({"lora_path":"x!","rid":"ID0","sampling_params":[{"n":1},{"n":1}]})")
      << "each of them, also for one prompt";
}

TEST(Routes, EveryRouteHasOneAnswer) {
  const auto action = [](EngineKind kind, const char* method, const char* path, bool any = false) {
    return ChooseRoute(kind, method, path, {.unknown = any, .calls = true}).action;
  };
  const auto kSglang = EngineKind::kSglang;
  const auto kVllm = EngineKind::kVllm;
  EXPECT_EQ(action(kSglang, "POST", "/generate"), RouteAction::kRewrite);
  EXPECT_EQ(action(kVllm, "POST", "/generate"), RouteAction::kRefuse);
  EXPECT_EQ(action(kVllm, "POST", "/inference/v1/generate"), RouteAction::kRewrite);
  EXPECT_EQ(action(kVllm, "GET", "/v1/models"), RouteAction::kModels);
  EXPECT_EQ(action(EngineKind::kUnknown, "GET", "/health"), RouteAction::kHealth);
  EXPECT_EQ(action(kSglang, "POST", "/load_lora_adapter", true), RouteAction::kCall);
  EXPECT_EQ(action(kSglang, "POST", "/load_lora_adapter_from_tensors"), RouteAction::kCall);
  EXPECT_EQ(action(kSglang, "POST", "/v1/decisions"), RouteAction::kRefuse);
  EXPECT_EQ(action(kSglang, "POST", "/v1/decisions", true), RouteAction::kPass);
  for (const char* path : {"/v1/embeddings", "/v1/responses", "/v1/messages", "/v1/score",
                           "/v1/rerank", "/classify"}) {
    EXPECT_EQ(action(kSglang, "POST", path), RouteAction::kRewrite) << path;
    EXPECT_EQ(action(kVllm, "POST", path), RouteAction::kRewrite) << path;
  }
  EXPECT_EQ(action(kVllm, "POST", "/invocations", true), RouteAction::kRefuse);
  EXPECT_EQ(action(kSglang, "POST", "/invocations"), RouteAction::kRewrite);
  EXPECT_EQ(action(kVllm, "GET", "/get_world_size"), RouteAction::kPass);
  EXPECT_EQ(action(kVllm, "GET", "/v1/models/policy@12"), RouteAction::kModel);
  EXPECT_EQ(action(kSglang, "GET", "/v1/models/org/Base%2D7B"), RouteAction::kModel);
  EXPECT_EQ(action(kSglang, "GET", "/v1/models/"), RouteAction::kRefuse);
  EXPECT_EQ(ChooseRoute(kSglang, "DELETE", "/v1/models/policy", {.unknown = true}).status, 405);
  for (const char* path : {"/%67enerate", "//generate", "/./generate", "/x/../generate",
                           "/generate;x", "/load%5flora_adapter"}) {
    EXPECT_EQ(action(kSglang, "POST", path, true), RouteAction::kRefuse) << path;
  }
  EXPECT_EQ(ChooseRoute(kSglang, "GET", "/generate", {.unknown = true}).status, 405);
  EXPECT_EQ(action(kSglang, "POST", "/register_lora_adapter", true), RouteAction::kRefuse);
  EXPECT_EQ(action(kVllm, "POST", "/load_lora_adapter_from_tensors", true), RouteAction::kRefuse);
  EXPECT_EQ(action(kVllm, "POST", "/skyrl/v1/generate", true), RouteAction::kRefuse);
  for (const char* path : {"/areal_set_update_weight_meta_lora", "/areal_update_weights_lora",
                           "/areal_update_weights_lora_xccl"})
    EXPECT_EQ(action(kVllm, "POST", path, true), RouteAction::kRefuse) << path;
  EXPECT_EQ(action(kVllm, "GET", "/art/capabilities"), RouteAction::kCall);
  EXPECT_NE(ChooseRoute(kVllm, "POST", "/abort_requests", {.unknown = true}).message.find("close"),
            std::string::npos);
}

TEST(Routes, CallsThatChangeTheEngineForEverybodyAreTakenWhereTheyAreAllowed) {
  const std::pair<EngineKind, const char*> calls[] = {
      {EngineKind::kSglang, "/pause_generation"},
      {EngineKind::kSglang, "/load_lora_adapter_from_tensors"},
      {EngineKind::kSglang, "/continue_generation"},
      {EngineKind::kVllm, "/pause"},
      {EngineKind::kVllm, "/resume"},
      {EngineKind::kVllm, "/areal_pause_generation"},
      {EngineKind::kVllm, "/areal_continue_generation"},
      {EngineKind::kSglang, "/release_memory_occupation"},
      {EngineKind::kSglang, "/resume_memory_occupation"},
      {EngineKind::kSglang, "/update_weights_from_disk"},
      {EngineKind::kSglang, "/update_weights_from_tensor"},
      {EngineKind::kSglang, "/update_weights_from_distributed"},
      {EngineKind::kSglang, "/update_weights_from_ipc"},
      {EngineKind::kVllm, "/load_lora_adapter"},
      {EngineKind::kVllm, "/skyrl/v1/load_lora_adapter"},
      {EngineKind::kVllm, "/sleep"},
      {EngineKind::kVllm, "/wake_up"},
      {EngineKind::kVllm, "/start_weight_update"},
      {EngineKind::kVllm, "/update_weights"},
      {EngineKind::kVllm, "/finish_weight_update"},
      {EngineKind::kVllm, "/areal_update_weights"},
      {EngineKind::kVllm, "/areal_update_weights_xccl"},
      {EngineKind::kVllm, "/collective_rpc"}};
  for (const auto& [kind, path] : calls) {
    EXPECT_EQ(ChooseRoute(kind, "POST", path, {.calls = true}).action, RouteAction::kCall) << path;
    const RouteChoice refused = ChooseRoute(kind, "POST", path, {.unknown = true});
    EXPECT_EQ(refused.action, RouteAction::kRefuse) << path;
    EXPECT_EQ(refused.status, 403) << path;
    EXPECT_NE(refused.message.find("--framework-calls=on"), std::string::npos) << path;
  }
  const auto flush = [](const char* method, bool allowed) {
    return ChooseRoute(EngineKind::kSglang, method, "/flush_cache", {.calls = allowed}).action;
  };
  EXPECT_EQ(flush("GET", true), RouteAction::kPassCall);
  EXPECT_EQ(flush("POST", true), RouteAction::kPassCall);
  EXPECT_EQ(flush("POST", false), RouteAction::kRefuse);
  const std::pair<EngineKind, const char*> passed[] = {
      {EngineKind::kVllm, "/reset_prefix_cache"},
      {EngineKind::kVllm, "/fetch_weights"},
      {EngineKind::kVllm, "/areal_init_weights_update_group"},
      {EngineKind::kVllm, "/areal_set_update_weight_meta"},
      {EngineKind::kVllm, "/init_weight_transfer_engine"},
      {EngineKind::kVllm, "/update_weight_version"},
      {EngineKind::kSglang, "/init_weights_update_group"},
      {EngineKind::kSglang, "/destroy_weights_update_group"}};
  for (const auto& [kind, path] : passed) {
    EXPECT_EQ(ChooseRoute(kind, "POST", path, {.calls = true}).action, RouteAction::kPassCall)
        << path;
    EXPECT_EQ(ChooseRoute(kind, "POST", path, {.unknown = true}).action, RouteAction::kRefuse)
        << path;
  }
  EXPECT_EQ(
      ChooseRoute(EngineKind::kSglang, "GET", "/release_memory_occupation", {.calls = true}).action,
      RouteAction::kCall);
}

uint32_t RequestsOf(EngineKind kind, BodyShape shape, const std::string& text) {
  const PaddedBody body{std::string(text)};
  const auto facts = ReadBody(kind, shape, kEngine, body);
  return facts.ok() ? facts->engine_requests : 0;
}

TEST(BodyFacts, CountTheRequestsThatTheEngineMakesOfIt) {
  using enum BodyShape;
  constexpr auto kS = EngineKind::kSglang, kV = EngineKind::kVllm;
  EXPECT_EQ(RequestsOf(kS, kGenerate, R"({"text":"x"})"), 1u);
  EXPECT_EQ(RequestsOf(kS, kGenerate, R"({"text":["x","y"],"sampling_params":{"n":8}})"), 16u);
  EXPECT_EQ(RequestsOf(kS, kGenerate, R"({"input_embeds":[[0.5],[1]]})"), 1u);
  EXPECT_EQ(RequestsOf(kS, kGenerate, R"({"input_embeds":[ [[0.5],[1]],[[1]]]})"), 2u);
  EXPECT_EQ(RequestsOf(kS, kChat, R"({"n":8})"), 8u);
  EXPECT_EQ(RequestsOf(kV, kChat, R"({"n":8})"), 8u);
  EXPECT_EQ(RequestsOf(kV, kChat, R"({"sampling_params":{"n":8}})"), 8u)
      << "/inference/v1/generate";
  const auto batch = ChooseRoute(kV, "POST", "/v1/chat/completions/batch", {}).shape;
  EXPECT_EQ(RequestsOf(kV, batch, R"({"messages":[[{"role":"user"}], [{"role":"user"}]]})"), 2u);
  EXPECT_EQ(RequestsOf(kV, kCompletion, R"({"prompt":[[1,2],[3]],"n":8})"), 16u);
  EXPECT_EQ(RequestsOf(kV, kCompletion, R"({"prompt":[1,2,3],"n":null})"), 1u);
  EXPECT_EQ(RequestsOf(kV, kCompletion, R"({"prompt":[],"n":"many"})"), 1u) << "vLLM refuses it";
  const auto made = [&](const char* path, const std::string& text) {
    return RequestsOf(kV, ChooseRoute(kV, "POST", path, {}).shape, text);
  };
  for (const char* path : {"/v1/embeddings", "/pooling", "/classify"}) {
    EXPECT_EQ(made(path, R"({"input":["x","y","z"]})"), 3u) << path;
    EXPECT_EQ(made(path, R"({"input":[1,2,3]})"), 1u) << path << ": the tokens of one text";
    for (const std::string key : {"input", "messages"}) {
      const std::string one = R"([{"role":"user"},{"role":"user"}])";
      EXPECT_EQ(made(path, "{\"" + key + "\":" + one + "}"), 1u) << path << ": a conversation";
      EXPECT_EQ(made(path, "{\"" + key + "\":[" + one + "," + one + "]}"), 2u) << path;
    }
  }
  EXPECT_EQ(made("/v2/embed", R"({"texts":["x","y"]})"), 2u);
  for (const char* path : {"/score", "/v1/score"}) {
    EXPECT_EQ(made(path, R"({"text_1":"x","text_2":["y","z"]})"), 2u) << path;
    EXPECT_EQ(made(path, R"({"queries":["x","y"],"documents":["y","z"]})"), 2u) << path;
  }
  for (const char* path : {"/rerank", "/v1/rerank", "/v2/rerank"})
    EXPECT_EQ(made(path, R"({"query":"x","documents":["y","z",{"text":"w"}]})"), 3u) << path;
  EXPECT_EQ(made("/generative_scoring", R"({"query":"x","items":["y","z"]})"), 2u);
  EXPECT_EQ(RequestsOf(kV, kChat, R"({"n":18446744073709551615})"), kMaxEngineRequests);
  EXPECT_EQ(RequestsOf(kV, kTokens, R"({"n":8})"), 1u);
}

TEST(BodyFacts, TellRequestsForThePromptsLogprobsWhereTheEngineDiesOfThem) {
  using enum BodyShape;
  const auto wants = [](BodyShape shape, const std::string& text, bool dies = true) {
    const PaddedBody body{std::string(text)};
    return ReadBody(EngineKind::kVllm, shape, {.dies_of_prompt_logprobs = dies}, body)
        ->wants_prompt_logprobs;
  };
  EXPECT_TRUE(wants(kCompletion, R"({"prompt_logprobs":0})"));
  EXPECT_TRUE(wants(kCompletion, R"({"echo":true,"logprobs":0})"));
  EXPECT_TRUE(wants(kChat, R"({"echo":1})"));
  EXPECT_TRUE(wants(kChatBatch, R"({"echo":true})"));
  EXPECT_TRUE(wants(kChat, R"({"sampling_params":{"prompt_logprobs":1}})"));
  EXPECT_FALSE(wants(kCompletion, R"({"prompt_logprobs":null,"logprobs":1})"));
  EXPECT_FALSE(wants(kCompletion, R"({"echo":true})"));
  EXPECT_FALSE(wants(kChat, R"({"sampling_params":[],"echo":false})"));
  EXPECT_FALSE(wants(kCompletion, R"({"prompt_logprobs":0})", /*dies=*/false));
}

}  // namespace
}  // namespace lorry::door
