#include "services/engine_proxy/calls/bind_calls.h"

#include <gtest/gtest.h>

namespace lorry::calls {
namespace {

using fleet::EngineKind;
using proxy::AnswerBinding;
using proxy::BindAnswer;

door::EngineCall Call(EngineKind kind, const std::string& path, const std::string& body) {
  door::EngineCall call;
  call.engine = kind;
  call.path = path;
  call.body = body;
  return call;
}
// "name path", with " in place"; "- name" to unbind; "refused".
std::string Asks(EngineKind kind, const std::string& path, const std::string& body) {
  const auto read = ReadBindCall(Call(kind, path, body));
  if (!read.has_value()) return "another's";
  if (std::holds_alternative<door::Refused>(*read)) return "refused";
  const BindCall& call = std::get<BindCall>(*read);
  if (const auto* unbind = std::get_if<proxy::UnbindAsked>(&call))
    return "- " + unbind->client_name;
  const auto& bind = std::get<proxy::BindAsked>(call);
  return bind.client_name + " " + bind.path + (bind.in_place ? " in place" : "") +
         (bind.as_tensors ? " in the call" : "");
}
std::string Says(EngineKind kind, const std::string& path, const AnswerBinding& answer) {
  const door::CallAnswer said = AnswerTo(Call(kind, path, ""), answer);
  const auto& reply = std::get<door::CallReply>(said);
  return std::to_string(reply.status) + " " + reply.body;
}
AnswerBinding Answer(BindAnswer answer, const std::string& reason = "",
                     const std::string& detail = "") {
  AnswerBinding said{.ticket = 1, .answer = answer};
  said.reason = reason;
  said.detail = detail;
  said.client_name = "a";
  said.path = "/d/a";
  said.order = 7;
  said.bound = {{"b", "/d/b"}};
  return said;
}

TEST(BindCalls, AreReadAsEachEngineReadsThem) {
  const std::string body = R"({"lora_name": "a", "lora_path": "/d/a", "pinned": true})";
  EXPECT_EQ(Asks(EngineKind::kSglang, "/load_lora_adapter", body), "a /d/a");
  EXPECT_EQ(Asks(EngineKind::kVllm, "/v1/load_lora_adapter", body), "a /d/a");
  EXPECT_EQ(Asks(EngineKind::kVllm, "/v1/load_lora_adapter",
                 R"({"lora_name": "a", "lora_path": "/d/a", "load_inplace": true})"),
            "a /d/a in place");
  EXPECT_EQ(Asks(EngineKind::kSglang, "/unload_lora_adapter", R"({"lora_name": "a"})"), "- a");
  EXPECT_EQ(
      Asks(EngineKind::kVllm, "/v1/unload_lora_adapter", R"({"lora_name": "a", "lora_int_id": 3})"),
      "- a");
  EXPECT_EQ(Asks(EngineKind::kVllm, "/load_lora_adapter/", R"({"lora_path": "/d/a"})"),
            "policy /d/a in place");
  EXPECT_EQ(Asks(EngineKind::kSglang, "/load_lora_adapter_from_tensors",
                 R"({"lora_name": "a", "serialized_named_tensors": [""], "config_dict": {}})"),
            "a __tensor__ in the call");
  EXPECT_EQ(Asks(EngineKind::kSglang, "/load_lora_adapter",
                 R"({"lora_name": "a", "lora_path": "__tensor__"})"),
            "a __tensor__");
  for (const std::string path : {"/load_lora_adapter", "/skyrl/v1/load_lora_adapter"}) {
    EXPECT_EQ(Asks(EngineKind::kVllm, path, body), "a /d/a in place") << path;
    EXPECT_EQ(Asks(EngineKind::kVllm, path, R"({"lora_name": "a"})"), "refused") << path;
  }
  EXPECT_EQ(Asks(EngineKind::kSglang, "/skyrl/v1/load_lora_adapter", body), "another's");
  EXPECT_EQ(Asks(EngineKind::kSglang, "/pause_generation", "{}"), "another's");
}

TEST(BindCalls, WhatSaysTooLittleIsRefused) {
  for (const std::string body :
       {"", "[]", "{}", R"({"lora_name": 3, "lora_path": "/d"})", R"({"lora_name": "a"})",
        R"({"lora_name": "", "lora_path": "/d"})", R"({"lora_name": "a", "lora_path": null})"}) {
    EXPECT_EQ(Asks(EngineKind::kSglang, "/load_lora_adapter", body), "refused") << body;
    EXPECT_EQ(Asks(EngineKind::kVllm, "/v1/load_lora_adapter", body), "refused") << body;
  }
  EXPECT_EQ(Asks(EngineKind::kSglang, "/load_lora_adapter_from_tensors", "{}"), "refused");
}

TEST(BindCalls, SglangsAnswersAreSglangs) {
  const auto says = [](const AnswerBinding& answer) {
    return Says(EngineKind::kSglang, "/load_lora_adapter", answer);
  };
  EXPECT_EQ(says(Answer(BindAnswer::kDone)),
            R"(200 {"rid":null,"http_worker_ipc":null,"success":true,"error_message":"",)"
            R"("loaded_adapters":{"b":"/d/b"}})");
  EXPECT_EQ(says(Answer(BindAnswer::kAlreadyLoaded)),
            R"(400 {"rid":null,"http_worker_ipc":null,"success":false,"error_message":)"
            R"("Failed to load LoRA adapter a because it is already loaded",)"
            R"("loaded_adapters":{"b":"/d/b"}})");
  EXPECT_EQ(says(Answer(BindAnswer::kNotBound)),
            R"(400 {"rid":null,"http_worker_ipc":null,"success":false,"error_message":)"
            R"x("LoRA with name a does not exist. Loaded LoRAs: odict_keys(['b'])",)x"
            R"("loaded_adapters":null})");
  EXPECT_EQ(
      says(Answer(BindAnswer::kRefused, "NO_SLOT", "held by b")),
      R"(400 {"rid":null,"http_worker_ipc":null,"success":false,"error_message":)"
      R"("Failed to load LoRA adapter a: NO_SLOT: held by b","loaded_adapters":{"b":"/d/b"}})");
}

TEST(BindCalls, VllmsAnswersAreVllms) {
  const auto says = [](const AnswerBinding& answer) {
    return Says(EngineKind::kVllm, "/v1/load_lora_adapter", answer);
  };
  EXPECT_EQ(says(Answer(BindAnswer::kDone)), "200 Success: LoRA adapter 'a' added successfully.");
  EXPECT_EQ(Says(EngineKind::kVllm, "/v1/unload_lora_adapter", Answer(BindAnswer::kDone)),
            "200 Success: LoRA adapter 'a' removed successfully.");
  EXPECT_EQ(
      says(Answer(BindAnswer::kAlreadyLoaded)),
      R"(400 {"error":{"message":"The lora adapter 'a' has already been loaded. If you want to )"
      R"(load the adapter in place, set 'load_inplace' to True.","type":"InvalidUserInput",)"
      R"("param":null,"code":400}})");
  EXPECT_EQ(says(Answer(BindAnswer::kNotBound)),
            R"(404 {"error":{"message":"The lora adapter 'a' cannot be found.",)"
            R"("type":"NotFoundError","param":null,"code":404}})");
  EXPECT_EQ(says(Answer(BindAnswer::kNoDirectory)),
            R"(404 {"error":{"message":"Loading lora a failed: No adapter found for /d/a",)"
            R"("type":"NotFoundError","param":null,"code":404}})");
  EXPECT_TRUE(says(Answer(BindAnswer::kRefused, "NO_SLOT", "b")).starts_with("503 "));
  EXPECT_TRUE(says(Answer(BindAnswer::kRefused, "DORA_UNSUPPORTED", "b")).starts_with("400 "));
}

TEST(BindCalls, TrlsServerNumbersItsLoads) {
  EXPECT_EQ(Says(EngineKind::kVllm, "/load_lora_adapter/", Answer(BindAnswer::kDone)),
            R"(200 {"status":"success","lora_int_id":7})");
  EXPECT_EQ(Says(EngineKind::kVllm, "/load_lora_adapter/",
                 Answer(BindAnswer::kRefused, "DORA_UNSUPPORTED", "why")),
            R"(400 {"detail":"DORA_UNSUPPORTED: why"})");
}

TEST(BindCalls, SkyrlsServerSaysWhatItLoaded) {
  const std::string path = "/skyrl/v1/load_lora_adapter";
  EXPECT_EQ(Says(EngineKind::kVllm, path, Answer(BindAnswer::kDone)),
            R"(200 {"status":"ok","lora_name":"a","lora_int_id":7})");
  EXPECT_EQ(Says(EngineKind::kVllm, path, Answer(BindAnswer::kRefused, "NO_SLOT", "b")),
            R"(503 {"detail":"NO_SLOT: b"})");
}

TEST(BindCalls, PrimeRlIsToldByAnErrorThatItMayTryAgain) {
  const auto says = [](const AnswerBinding& answer) {
    return Says(EngineKind::kVllm, "/load_lora_adapter", answer).substr(0, 3);
  };
  EXPECT_EQ(Says(EngineKind::kVllm, "/load_lora_adapter", Answer(BindAnswer::kDone)),
            R"(200 {"status":"ok"})");
  EXPECT_EQ(says(Answer(BindAnswer::kNoDirectory)), "404");
  EXPECT_EQ(says(Answer(BindAnswer::kRefused, "NO_SLOT", "b")), "500");
  EXPECT_EQ(says(Answer(BindAnswer::kRefused, "DORA_UNSUPPORTED", "b")), "400");
}

TEST(BindCalls, ArtIsToldToLoadByNames) {
  const auto reply = ReplyAtOnce(Call(EngineKind::kVllm, "/art/capabilities", ""));
  ASSERT_TRUE(reply.has_value());
  EXPECT_EQ(reply->status, 200);
  EXPECT_EQ(reply->body,
            R"({"runtime":"openai_compatible","protocol_version":0,"inplace_lora_load":true})");
  EXPECT_FALSE(ReplyAtOnce(Call(EngineKind::kSglang, "/art/capabilities", "")).has_value());
  EXPECT_FALSE(ReplyAtOnce(Call(EngineKind::kVllm, "/v1/load_lora_adapter", "")).has_value());
}

}  // namespace
}  // namespace lorry::calls
