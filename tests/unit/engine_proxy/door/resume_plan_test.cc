// What may be resumed, and that the parts of several versions become one reply.
#include "services/engine_proxy/door/resume_plan.h"

#include <gtest/gtest.h>

#include <string>

namespace lorry::door {
namespace {

absl::StatusOr<ResumePlan> Plan(const std::string& body) {
  const PaddedBody padded(body);
  const auto facts = ReadBody(fleet::EngineKind::kSglang, BodyShape::kGenerate, {}, padded);
  EXPECT_TRUE(facts.ok()) << body << facts.status();
  return PlanResume(*facts, padded);
}

std::string Why(const std::string& body) { return std::string(Plan(body).status().message()); }

std::string With(const std::string& field) {
  return R"({"input_ids":[1],"sampling_params":{"max_new_tokens":9},)" + field + "}";
}

std::string Sampled(const std::string& field) {
  return R"({"input_ids":[1],"sampling_params":{"max_new_tokens":9,)" + field + "}}";
}

TEST(PlanResume, TokensInAndOutWithWhatMeansTheSameAnew) {
  EXPECT_TRUE(Plan(With(R"("stream":true,"return_logprob":true,"lora_path":"policy")")).ok());
  EXPECT_TRUE(Plan(Sampled(R"("temperature":0.5,"n":1,"stop":null)")).ok());
}

TEST(PlanResume, NamesWhatDoesNot) {
  EXPECT_EQ(Why(Sampled(R"("stop":["x"])")), "stop");
  EXPECT_EQ(Why(Sampled(R"("json_schema":"{}")")), "json_schema");
  EXPECT_EQ(Why(Sampled(R"("regex":"a")")), "regex");
  EXPECT_EQ(Why(Sampled(R"("sampling_seed":1)")), "sampling_seed");
  EXPECT_EQ(Why(Sampled(R"("presence_penalty":1)")), "presence_penalty");
  EXPECT_EQ(Why(Sampled(R"("n":2)")), "n > 1");
  EXPECT_EQ(Why(With(R"("return_routed_experts":true)")), "return_routed_experts");
  EXPECT_EQ(Why(With(R"("image_data":"x")")), "image_data");
  EXPECT_EQ(Why(R"({"text":"a","sampling_params":{"max_new_tokens":9}})"), "no input_ids");
  EXPECT_EQ(Why(R"({"input_ids":[1]})"), "no max_new_tokens");
  EXPECT_EQ(Why(R"({"input_ids":[1],"sampling_params":{}})"), "no max_new_tokens");
  EXPECT_EQ(Why(R"({"input_ids":"1","sampling_params":{"max_new_tokens":9}})"), "no input_ids");
  EXPECT_EQ(Why(R"({"input_ids":[1],"sampling_params":[{}]})"), "no max_new_tokens");
  EXPECT_EQ(Why(R"({"input_ids":[1],"sampling_params":{"max_new_tokens":"9"}})"),
            "no max_new_tokens");
  EXPECT_EQ(Why(R"({"input_ids":[[1]],"sampling_params":{"max_new_tokens":9}})"), "a batch");
}

TEST(ContinuationEdits, AskForTheRestBehindWhatIsThere) {
  const std::string text = R"({"input_ids":[1, 2],"sampling_params":{"max_new_tokens":9}})";
  const PaddedBody body(text);
  const ResumePlan plan = *Plan(text);
  EXPECT_EQ(ApplyEdits(body.view(), ContinuationEdits(plan, body, {.ids = "7, 8", .tokens = 2})),
            R"({"input_ids":[1, 2,7, 8],"sampling_params":{"max_new_tokens":7}})");
  EXPECT_EQ(ApplyEdits(body.view(), ContinuationEdits(plan, body, {})), text);
}

TEST(ReadGenerated, TellsTokensAndHowItEnded) {
  const auto read = [](const char* text) { return ReadGenerated(PaddedBody(text)); };
  const auto aborted = read(
      R"({"text":null,"output_ids":[3,4],"meta_info":{"completion_tokens":2,"finish_reason":{"type":"abort","message":"x"}}})");
  EXPECT_EQ(aborted->ids, "3,4");
  EXPECT_EQ(aborted->tokens, 2u);
  EXPECT_TRUE(aborted->lists_all);
  const auto last = read(R"({"output_ids":[4],"meta_info":{"completion_tokens":2}})");
  EXPECT_EQ(last->tokens, 2u);
  EXPECT_FALSE(last->lists_all);
  EXPECT_TRUE(aborted->is_over && aborted->is_aborted);
  const auto stopped =
      read(R"({"output_ids":[ ],"meta_info":{"finish_reason":{"type":"length","length":1}}})");
  EXPECT_EQ(stopped->tokens, 0u);
  EXPECT_TRUE(stopped->is_over && !stopped->is_aborted);
  EXPECT_FALSE(read(R"({"output_ids":[5],"meta_info":{"finish_reason":null}})")->is_over);
  EXPECT_TRUE(read(R"({"output_ids":[5],"meta_info":{"finish_reason":"stop"}})")->is_over);
  EXPECT_FALSE(read(R"({"output_ids":"5","meta_info":{}})").ok());
  EXPECT_FALSE(read(R"({"output_ids":[5],"meta_info":[]})").ok());
  EXPECT_FALSE(read(R"({"error":{"message":"x"}})").ok());
  EXPECT_FALSE(read(R"([1])").ok());
}

TEST(Continued, IsOneReplyOfAllTokens) {
  const PaddedBody before(std::string(
      R"({"text":"a\u00e9","output_ids":[3,4],"meta_info":{"id":"x","prompt_tokens":2,"cached_tokens":1,"completion_tokens":2,"input_token_logprobs":[],"output_token_logprobs":[[-0.50,3,null],[-1,4,null]]}})"));
  const auto joined = Continued(
      before,
      R"({"text":"b","output_ids":[5],"meta_info":{"id":"y","finish_reason":{"type":"length"},"prompt_tokens":4,"cached_tokens":4,"completion_tokens":1,"input_token_logprobs":[[1]],"output_token_logprobs":[[-2.0,5,null]],"e2e":1}})");
  EXPECT_EQ(
      *joined,
      R"({"text":"a\u00e9b","output_ids":[3,4,5],"meta_info":{"id":"y","finish_reason":{"type":"length"},"prompt_tokens":2,"cached_tokens":1,"completion_tokens":3,"input_token_logprobs":[],"output_token_logprobs":[[-0.50,3,null],[-1,4,null],[-2.0,5,null]],"e2e":1}})");
}

TEST(Continued, AddsUpWhatIsCounted) {
  const PaddedBody before(std::string(
      R"({"output_ids":[3,4],"meta_info":{"completion_tokens":2,"reasoning_tokens":1,"output_token_logprobs_length":2}})"));
  EXPECT_EQ(
      *Continued(
          before,
          R"({"output_ids":[5],"meta_info":{"output_token_logprobs_length":1,"reasoning_tokens":1,"completion_tokens":1}})"),
      R"({"output_ids":[3,4,5],"meta_info":{"output_token_logprobs_length":3,"reasoning_tokens":2,"completion_tokens":3}})");
}

TEST(Continued, PartsWithoutTokensChangeNothing) {
  const PaddedBody nothing(
      std::string(R"({"text":"","output_ids":[],"meta_info":{"completion_tokens":0}})"));
  const std::string reply =
      R"({"text":"b","output_ids":[5],"meta_info":{"prompt_tokens":4,"completion_tokens":1}})";
  EXPECT_EQ(*Continued(nothing, reply), reply);
  const PaddedBody some{std::string(reply)};
  EXPECT_EQ(
      *Continued(
          some,
          R"({"text":"","output_ids":[],"meta_info":{"prompt_tokens":5,"completion_tokens":0}})"),
      reply);
}

TEST(Continued, JoinsNothingToWhatIsNoList) {
  const std::string listed =
      R"({"text":"a","output_ids":[3],"meta_info":{"completion_tokens":1,"output_token_logprobs":[[1]]}})";
  const std::string other =
      R"({"text":null,"output_ids":[4],"meta_info":{"completion_tokens":1,"output_token_logprobs":null}})";
  const auto joined = [](const std::string& before, const std::string& reply) {
    return *Continued(PaddedBody(before), reply);
  };
  EXPECT_EQ(
      joined(listed, other),
      R"({"text":null,"output_ids":[3,4],"meta_info":{"completion_tokens":2,"output_token_logprobs":null}})");
  EXPECT_EQ(
      joined(other, listed),
      R"({"text":"a","output_ids":[4,3],"meta_info":{"completion_tokens":2,"output_token_logprobs":[[1]]}})");
}

TEST(Continued, RefusesWhatIsNoGeneration) {
  const std::string reply = R"({"output_ids":[3],"meta_info":{"completion_tokens":1}})";
  for (const char* old : {R"({"meta_info":{}})", R"({"meta_info":1})", "{}"}) {
    EXPECT_FALSE(Continued(PaddedBody(std::string(old)), reply).ok()) << old;
  }
  const PaddedBody before(std::string(R"({"output_ids":[3],"meta_info":{"completion_tokens":1}})"));
  for (const char* other : {"[]", "{}", R"({"meta_info":[]})", R"({"meta_info":{}})",
                            R"({"meta_info":{"completion_tokens":"1"}})", "data"}) {
    EXPECT_FALSE(Continued(before, other).ok()) << other;
  }
}

}  // namespace
}  // namespace lorry::door
