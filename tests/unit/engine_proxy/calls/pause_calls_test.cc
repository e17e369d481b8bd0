// What frameworks write, and what they read, in each engine's own words.
#include "services/engine_proxy/calls/pause_calls.h"

#include <string>
#include <tuple>

#include "gtest/gtest.h"
#include "services/engine_proxy/calls/query.h"

namespace lorry::calls {
namespace {

using fleet::EngineKind;
using fleet::PauseKind;
using proxy::Outcome;

door::EngineCall Call(EngineKind kind, std::string path, std::string query = "",
                      std::string body = "") {
  return {
      .engine = kind, .path = std::move(path), .query = std::move(query), .body = std::move(body)};
}
door::EngineCall Sglang(std::string body) {
  return Call(EngineKind::kSglang, "/pause_generation", "", std::move(body));
}
door::EngineCall Vllm(std::string query) {
  return Call(EngineKind::kVllm, "/pause", std::move(query));
}

// The kind of pause and whether caches go with it; or why not.
std::string Said(const door::EngineCall& call) {
  const auto read = ReadPauseCall(call);
  if (!read.has_value()) return "no such call";
  if (const auto* refused = std::get_if<door::Refused>(&*read))
    return std::to_string(refused->status) + " " + refused->reason;
  const auto& asked = std::get<proxy::FrameworkCall>(*read);
  const auto* pause = std::get_if<proxy::PauseCall>(&asked);
  if (pause == nullptr) return "continue";
  const char* const kinds[] = {"none", "abort", "retract", "in_place", "wait", "keep", "drain"};
  return std::string(kinds[static_cast<int>(pause->kind)]) + (pause->flush ? " flush" : "");
}

TEST(PauseCalls, SglangsModes) {
  EXPECT_EQ(Said(Sglang("{}")), "abort");
  EXPECT_EQ(Said(Sglang("")), "abort");
  EXPECT_EQ(Said(Sglang(R"({"mode":"abort","more":[1]})")), "abort");
  EXPECT_EQ(Said(Sglang(R"({"mode": "retract"})")), "retract");
  EXPECT_EQ(Said(Sglang(R"({"mode":"in_place"})")), "in_place");
  EXPECT_EQ(Said(Call(EngineKind::kSglang, "/continue_generation", "", R"({"a":1})")), "continue");
}

TEST(PauseCalls, WhatCannotBeMeantIsRefused) {
  for (const char* body : {R"({"mode":"bogus"})", R"({"mode":null})", R"({"mode":1})", "[]", "{",
                           R"({"mode":"abort","mode":"retract"})", "\"abort\"", "\xff\xfe"}) {
    EXPECT_EQ(Said(Sglang(body)), "400 REQUEST_INVALID") << body;
  }
  EXPECT_EQ(Said(Sglang("{\"a\":" + std::string(100'000, '[') + "}")), "400 REQUEST_INVALID");
  for (const char* query : {"?mode=bogus", "?mode=", "?mode=%61bort", "?clear_cache=maybe",
                            "?wait_for_inflight_requests=2", "?mode=keep&mode=bogus"}) {
    EXPECT_EQ(Said(Vllm(query)), "400 REQUEST_INVALID") << query;
  }
}

TEST(PauseCalls, VllmsModes) {
  EXPECT_EQ(Said(Vllm("")), "abort flush");
  EXPECT_EQ(Said(Vllm("?mode=wait")), "wait flush");
  EXPECT_EQ(Said(Vllm("?mode=keep&clear_cache=false")), "keep");
  EXPECT_EQ(Said(Vllm("?clear_cache=False&mode=abort")), "abort");
  EXPECT_EQ(Said(Vllm("?wait_for_inflight_requests=true&clear_cache=0")), "wait");
  EXPECT_EQ(Said(Vllm("?mode=bogus&mode=keep&&other")), "keep flush") << "the last counts";
  EXPECT_EQ(Said(Call(EngineKind::kVllm, "/resume")), "continue");
}

TEST(PauseCalls, ArealsNamesAreVllmsCalls) {
  EXPECT_EQ(Said(Call(EngineKind::kVllm, "/areal_pause_generation", "", "{}")), "abort flush");
  EXPECT_EQ(Said(Call(EngineKind::kVllm, "/areal_continue_generation", "", "{}")), "continue");
}

TEST(PauseCalls, EachEngineHasItsOwn) {
  EXPECT_EQ(Said(Call(EngineKind::kSglang, "/pause")), "no such call");
  EXPECT_EQ(Said(Call(EngineKind::kVllm, "/pause_generation")), "no such call");
  EXPECT_EQ(Said(Call(EngineKind::kUnknown, "/pause")), "no such call");
}

// As real engines answered (SGLang 0.5.23, vLLM 0.32, AReaL 1.0.4).
TEST(PauseCalls, AnswersAreTheEngines) {
  const std::tuple<EngineKind, const char*, const char*> replies[] = {
      {EngineKind::kSglang, "/pause_generation",
       R"({"message":"Generation paused successfully.","status":"ok"})"},
      {EngineKind::kSglang, "/continue_generation",
       R"({"message":"Generation continued successfully.","status":"ok"})"},
      {EngineKind::kVllm, "/pause", R"({"status":"paused"})"},
      {EngineKind::kVllm, "/resume", R"({"status":"resumed"})"}};
  for (const auto& [kind, path, body] : replies) {
    const door::CallAnswer answer = AnswerTo(Call(kind, path), {1, Outcome::kOk});
    const auto& reply = std::get<door::CallReply>(answer);
    EXPECT_EQ(reply.status, 200) << path;
    EXPECT_EQ(reply.content_type, "application/json") << path;
    EXPECT_EQ(reply.body, body) << path;
  }
}

TEST(PauseCalls, FailuresSayWhetherItIsWorthAnotherTry) {
  const auto refusal = [](Outcome outcome, std::string reason = "WHY") {
    return std::get<door::Refused>(AnswerTo(Vllm(""), {1, outcome, std::move(reason), "because"}));
  };
  EXPECT_EQ(refusal(Outcome::kRefused).status, 409);
  EXPECT_EQ(refusal(Outcome::kFailed).status, 500);
  EXPECT_EQ(refusal(Outcome::kUnsent).status, 503);
  EXPECT_GT(refusal(Outcome::kUnsent).retry_after_s, 0);
  EXPECT_EQ(refusal(Outcome::kBroken).status, 502);
  EXPECT_EQ(refusal(Outcome::kUnknown).status, 504);
  EXPECT_EQ(refusal(Outcome::kUnknown).retry_after_s, 0);
  EXPECT_EQ(refusal(Outcome::kFailed).reason, "WHY");
  EXPECT_EQ(refusal(Outcome::kFailed).message, "because");
  EXPECT_EQ(refusal(Outcome::kFailed, "").reason, "ENGINE_FAILED");
}

TEST(Query, IsReadAsFastApiReadsIt) {
  const auto fields = QueryFields("?a=1&b&c==2&&a=3&=4");
  ASSERT_EQ(fields.size(), 5u);
  EXPECT_EQ(FindInQuery(fields, "a"), "3");
  EXPECT_EQ(FindInQuery(fields, "b"), "");
  EXPECT_EQ(FindInQuery(fields, "c"), "=2");
  EXPECT_EQ(FindInQuery(fields, "d"), std::nullopt);
  EXPECT_TRUE(QueryFields("").empty());
  EXPECT_TRUE(QueryFields("?").empty());
  EXPECT_EQ(TruthOf("Yes"), true);
  EXPECT_EQ(TruthOf("OFF"), false);
  EXPECT_EQ(TruthOf(""), std::nullopt);
}

}  // namespace
}  // namespace lorry::calls
