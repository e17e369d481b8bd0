// What the engines' answers to a probe mean. The samples are of SGLang 0.5.23 and vLLM 0.32.0.
#include "services/engine_proxy/engines/probe.h"

#include <gmock/gmock.h>

#include <cmath>

#include "lib/base/error.h"
#include "services/engine_proxy/engines/wire.h"

namespace lorry::engines {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::IsNan;

// As vLLM 0.32 answers where its log-probabilities are NaN, which Python's JSON refuses to write.
constexpr std::string_view kVllmNan =
    R"({"error":{"message":"Out of range float values are not JSON compliant: nan",
        "type":"BadRequestError","param":null,"code":400}})";

TEST(Probe, ItsPromptAndItsTokenHaveLogprobs) {
  const auto sglang = ParseSglangToken({200, R"({"text":"x","output_ids":[164],
    "meta_info":{"input_token_logprobs":[[null,1,null],[-3.5,2,null]],
                 "output_token_logprobs":[[-0.75,164,null]]}})"});
  EXPECT_THAT(sglang->logprobs, ElementsAre(IsNan(), -3.5, -0.75));
  const auto vllm = ParseVllmToken({200, R"({"choices":[{"text":"xy",
    "logprobs":{"token_logprobs":[-3.5,-0.75]}}],"usage":{"completion_tokens":2}})"});
  EXPECT_THAT(vllm->logprobs, ElementsAre(-3.5, -0.75));
  EXPECT_THAT(ParseSglangToken({200, R"({"output_ids":[164]})"})->logprobs, IsEmpty());
  EXPECT_EQ(ReasonOf(ParseSglangToken({200, R"({"output_ids":[]})"}).status()), "PROBE_FAILED");
  EXPECT_EQ(ReasonOf(ParseVllmToken({200, R"({"choices":[]})"}).status()), "PROBE_FAILED");
}

TEST(Probe, WhatIsNoNumberIsToldFromWhatIsNotSaid) {
  const auto sglang = ParseSglangToken({200, R"({"output_ids":[0],
    "meta_info":{"input_token_logprobs":[[null,1,null],[null,2,null]],
                 "output_token_logprobs":[[null,0,null]]}})"});
  EXPECT_THAT(sglang->logprobs, ElementsAre(IsNan(), IsNan(), IsNan()));
  for (const unsigned status : {400u, 500u}) {
    const auto vllm = ParseVllmToken({status, std::string(kVllmNan)});
    EXPECT_EQ(ReasonOf(vllm.status()), "PROBE_NOT_FINITE");
    EXPECT_EQ(EndOf(vllm.status()), End::kRefused);
  }
}

TEST(Probe, AnAdapterWithoutNumbersWhereTheBaseModelHasThemIsNotTheBaseModel) {
  const double nan = std::nan("");
  const ProbeReply base{{nan, -1.0, -2.0}}, none{{nan, nan, nan}}, one{{nan, -1.5, nan}},
      odd{{-9.0, -1.5, -2.0}};
  const auto difference = [](const ProbeReply& of_base, const ProbeReply& adapter) {
    const auto compared = Compare({of_base, of_base}, {adapter, adapter});
    return compared ? compared->difference : -1.0;
  };
  EXPECT_THAT(difference(base, none), IsNan());
  EXPECT_THAT(difference(base, one), IsNan());
  EXPECT_EQ(difference(base, base), 0) << "a prompt's first token has no number";
  EXPECT_EQ(difference(base, odd), 0.5) << "and counts for nothing";
  EXPECT_EQ(difference(none, none), -1) << "an engine that answers nobody with numbers";
}

TEST(Probe, WhatTheEngineEndsForOthersSakeIsNoAnswer) {
  const auto was_shed = [](fleet::EngineKind kind, std::string body, unsigned status = 200) {
    return WasShed(kind, {status, std::move(body)});
  };
  using fleet::EngineKind;
  for (const EngineKind kind : {EngineKind::kSglang, EngineKind::kVllm}) {
    EXPECT_TRUE(was_shed(kind, R"({"error":{"message":"The request queue is full."}})", 503));
    EXPECT_FALSE(was_shed(kind, R"({"error":{"message":"it died"}})", 500));
    EXPECT_FALSE(was_shed(kind, R"({"output_ids":[164],"choices":[]})"));
  }
  EXPECT_TRUE(was_shed(EngineKind::kSglang, R"({"text":"","output_ids":[],"meta_info":
      {"finish_reason":{"type":"abort","message":"Abort in waiting queue"}}})"));
  EXPECT_FALSE(was_shed(EngineKind::kSglang, R"({"output_ids":[164],"meta_info":
      {"finish_reason":{"type":"length","length":1}}})"));
  EXPECT_TRUE(was_shed(EngineKind::kVllm, R"({"choices":[{"finish_reason":"length"},
                                                         {"finish_reason":"abort"}]})"));
  EXPECT_FALSE(was_shed(EngineKind::kVllm, R"({"choices":[{"finish_reason":"length"}]})"));
}

const peft::ReferencePrompt kThree{.tokens = {1, 40, 90}, .logprobs = {-2, -1}};

TEST(Reference, SglangTellsItsPromptsLogprobs) {
  const auto read = [](std::string body, unsigned status = 200) {
    return ParseSglangReference({status, std::move(body)}, kThree);
  };
  EXPECT_THAT(*read(R"({"output_ids":[164],"meta_info":{"input_token_logprobs":
    [[null,1,null],[-3.5,40,null],[-0.75,90,null]]}})"),
              ElementsAre(-3.5, -0.75));
  EXPECT_THAT(*read(R"({"meta_info":{"input_token_logprobs":[[null,1,null],[-3.5,40,null]]}})"),
              IsEmpty());
  EXPECT_THAT(*read(R"({"meta_info":{"input_token_logprobs":
    [[null,1,null],[-3.5,41,null],[-0.75,90,null]]}})"),
              IsEmpty())
      << "of another token";
  EXPECT_THAT(*read(R"({"meta_info":{"input_token_logprobs":
    [[null,1,null],[-3.5,40,null],[null,90,null]]}})"),
              ElementsAre(-3.5, IsNan()));
  EXPECT_THAT(*read(R"({"meta_info":{"input_token_logprobs":[1,2,3]}})"), IsEmpty());
  EXPECT_THAT(*read(R"({"output_ids":[164]})"), IsEmpty());
  EXPECT_THAT(*read(R"({"error":"no"})", 400), IsEmpty()) << "it does not take the question";
  EXPECT_EQ(ReasonOf(read(R"({"error":"no"})", 500).status()), "ENGINE_FAILED");
}

TEST(Reference, VllmTellsTheNextTokenAfterEachBeginning) {
  const auto read = [](std::string body, unsigned status = 200) {
    return ParseVllmReference({status, std::move(body)}, kThree);
  };
  EXPECT_THAT(*read(R"({"choices":[
    {"index":1,"logprobs":{"top_logprobs":[{"token_id:7":-0.1,"token_id:40":-9,"token_id:90":-0.75}]}},
    {"index":0,"logprobs":{"top_logprobs":[{"token_id:40":-3.5,"token_id:90":-8}]}}]})"),
              ElementsAre(-3.5, -0.75));
  EXPECT_THAT(*read(R"({"choices":[
    {"index":0,"logprobs":{"top_logprobs":[{"token_id:7":-0.1}]}},
    {"index":1,"logprobs":{"top_logprobs":[{"token_id:90":-0.75}]}}]})"),
              IsEmpty())
      << "one that does not know logprob_token_ids tells its own choice alone";
  EXPECT_THAT(*read(R"({"choices":[{"index":0},{"index":0}]})"), IsEmpty());
  EXPECT_THAT(*read(R"({"choices":[{"index":0,"logprobs":{"top_logprobs":[{"token_id:40":-1}]}},
                                   {"index":2,"logprobs":{"top_logprobs":[{"token_id:90":-1}]}}]})"),
              IsEmpty());
  EXPECT_THAT(*read(R"({"choices":[]})"), IsEmpty());
  EXPECT_THAT(*read(R"({"error":{"message":"unknown field"}})", 400), IsEmpty());
  EXPECT_EQ(ReasonOf(read(R"({"error":{"message":"no"}})", 500).status()), "ENGINE_FAILED");
  EXPECT_EQ(ReasonOf(read(std::string(kVllmNan), 400).status()), "PROBE_NOT_FINITE");
}

TEST(Reference, TheGapIsTheMeanAndTheMostOverAllPrompts) {
  const peft::Reference reference = {{{1, 2, 3}, {-1, -2}, {-1.5, -2.5}}, {{4, 5}, {-3}, {-6}}};
  const auto gap = GapTo(reference, {{-1, -2.5}, {-2}});
  ASSERT_TRUE(gap.has_value());
  EXPECT_DOUBLE_EQ(gap->mean, 0.5);
  EXPECT_DOUBLE_EQ(gap->max, 1);
  EXPECT_DOUBLE_EQ(*gap->base, 4.0 / 3);
  EXPECT_FALSE(GapTo(reference, {{-1, -2.5}, {}}).has_value()) << "a prompt was not answered";
  EXPECT_FALSE(GapTo(reference, {{-1, -2.5}}).has_value());
  EXPECT_FALSE(GapTo({}, {}).has_value());
  EXPECT_FALSE(GapTo({{{1, 2}, {-1}, {}}}, {{-1}})->base.has_value());
  EXPECT_THAT(GapTo(reference, {{std::nan(""), -2.5}, {-2}})->mean, IsNan());
}

TEST(Probe, TheLargestDifferenceOfTheTwoNearestAnswersCounts) {
  const ProbeReply low{{-1.0, -2.0}}, high{{-1.0, -2.25}}, other{{-1.0, -2.75}};
  const auto compare = [](const ProbePair& base, const ProbePair& adapter) {
    const auto compared = Compare(base, adapter);
    return compared ? std::pair(compared->difference, compared->noise) : std::pair(-1.0, -1.0);
  };
  EXPECT_EQ(compare({low, high}, {other, other}), std::pair(0.5, 0.25));
  EXPECT_EQ(compare({high, low}, {other, other}), std::pair(0.5, 0.25));
  EXPECT_EQ(compare({low, low}, {other, high}), std::pair(0.25, 0.5));
  EXPECT_EQ(compare({low, low}, {high, other}), std::pair(0.25, 0.5));
  const ProbeReply short_one{{-1.0}}, none;
  EXPECT_EQ(compare({short_one, low}, {low, low}), std::pair(-1.0, -1.0));
  EXPECT_EQ(compare({low, short_one}, {low, low}), std::pair(-1.0, -1.0));
  EXPECT_EQ(compare({low, low}, {short_one, low}), std::pair(-1.0, -1.0));
  EXPECT_EQ(compare({low, low}, {low, short_one}), std::pair(-1.0, -1.0));
  EXPECT_EQ(compare({none, none}, {none, none}), std::pair(-1.0, -1.0))
      << "an engine without log-probabilities";
}

}  // namespace
}  // namespace lorry::engines
