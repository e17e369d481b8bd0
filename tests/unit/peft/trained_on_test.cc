#include "lib/peft/trained_on.h"

#include <gmock/gmock.h>

#include "lib/base/error.h"
#include "lib/peft/validate.h"

namespace lorry::peft {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(TrainedOn, IsReadAsItIsWritten) {
  const auto read = ParseTrainedOn(
      R"({"architecture":"llama","quantization":"fp8","revision":"abc","another":1})");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, (TrainedOn{true, "llama", "abc", "fp8"}));
  for (const char* text : {"", "[]", R"({"architecture":7})", R"({"revision":null})"})
    EXPECT_EQ(ReasonOf(ParseTrainedOn(text).status()), "IMAGE_MALFORMED") << text;
  const std::string longest(101, 'x');
  EXPECT_FALSE(ParseTrainedOn(R"({"revision":")" + longest + R"("})").ok());
}

TEST(TrainedOn, WhatDiffersIsSaid) {
  const BaseModel base{.architecture = "llama", .quantization = "fp8", .revision = "aaa"};
  EXPECT_EQ(Differences({}, base), "") << "the trainer said nothing";
  EXPECT_EQ(Differences({true, "llama", "aaa", "fp8"}, base), "");
  EXPECT_EQ(Differences({true, "llama", "", "fp8"}, base), "") << "of a directory";
  EXPECT_THAT(Differences({true, "llama", "bbb", ""}, base),
              AllOf(HasSubstr("bbb"), HasSubstr("aaa"), HasSubstr("without quantisation"),
                    HasSubstr("quantised by fp8")));
}

TEST(TrainedOn, AnotherArchitectureIsAnotherModel) {
  Adapter adapter;
  const BaseModel base{.architecture = "llama", .hidden_size = 16};
  EXPECT_TRUE(CheckFits(adapter, base).ok());
  adapter.trained_on = {.said = true, .architecture = "llama"};
  EXPECT_TRUE(CheckFits(adapter, base).ok());
  adapter.trained_on.architecture = "mistral";
  EXPECT_EQ(ReasonOf(CheckFits(adapter, base)), "BASE_MODEL_MISMATCH");
}

TEST(TrainedOn, TheTextModelOfOneThatAlsoSeesIsTheSameModel) {
  // As Qwen/Qwen2.5-VL-3B-Instruct has it: the text model's sizes are beside vision_config.
  const auto base = ParseBaseModel(R"({"model_type":"qwen2_5_vl","hidden_size":64,
    "num_hidden_layers":2,"vocab_size":512,"vision_config":{"hidden_size":9}})");
  ASSERT_TRUE(base.ok()) << base.status();
  Adapter adapter;
  for (const char* architecture : {"qwen2_5_vl_text", "qwen2_5_vl"}) {
    adapter.trained_on = {.said = true, .architecture = architecture};
    EXPECT_TRUE(CheckFits(adapter, *base).ok()) << architecture;
  }
  for (const char* architecture : {"qwen2_vl_text", "qwen2_5_vl_vision", "_text"}) {
    adapter.trained_on.architecture = architecture;
    EXPECT_EQ(ReasonOf(CheckFits(adapter, *base)), "BASE_MODEL_MISMATCH") << architecture;
  }
}

}  // namespace
}  // namespace lorry::peft
