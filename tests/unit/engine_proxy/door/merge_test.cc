#include "services/engine_proxy/door/merge.h"

#include <gtest/gtest.h>

#include <string>

#include "services/engine_proxy/door/merge_stream.h"

namespace lorry::door {
namespace {

std::string Fed(StreamMerger& merger, size_t sample, std::string_view piece) {
  std::string out;
  EXPECT_TRUE(merger.Feed(sample, piece, &out).ok()) << piece;
  return out;
}

TEST(Merge, NumbersTheChoicesAndAddsUpTheTokens) {
  const auto merged = MergeOpenAi(
      {R"({"id":"x","choices":[{"index":0,"text":"a","logprobs":-0.10}],"usage":{"prompt_tokens":5,"total_tokens":7,"completion_tokens":2}})",
       R"({"id":"y","choices":[ {"text":"b","index":0}],"usage":{"prompt_tokens":5,"total_tokens":9,"completion_tokens":4}})"},
      {.n = 2});
  ASSERT_TRUE(merged.ok()) << merged.status();
  EXPECT_EQ(
      *merged,
      R"({"id":"x","choices":[{"index":0,"text":"a","logprobs":-0.10},{"text":"b","index":1}],"usage":{"prompt_tokens":5,"total_tokens":11,"completion_tokens":6}})");
  EXPECT_FALSE(MergeOpenAi({R"({"choices":[]})", R"({})"}, {.n = 2}).ok());
  EXPECT_EQ(*MergeGenerate({"{}", "{\"a\":1}"}, {.n = 2}), "[{},{\"a\":1}]");
}

TEST(Merge, AddsUpTheDetailsOfTheTokens) {
  const auto reply = [](const char* details) {
    return std::string(R"({"choices":[{"index":0}],"usage":{"completion_tokens":2,)") +
           R"("completion_tokens_details":)" + details + "}}";
  };
  const auto merged = MergeOpenAi({reply(R"({"reasoning_tokens":1,"audio_tokens":null})"),
                                   reply(R"({"reasoning_tokens":3,"audio_tokens":5})")},
                                  {.n = 2});
  ASSERT_TRUE(merged.ok()) << merged.status();
  EXPECT_NE(merged->find(R"("completion_tokens_details":{"reasoning_tokens":4,)"),
            std::string::npos)
      << *merged;
  EXPECT_TRUE(MergeOpenAi({reply("null"), reply("null")}, {.n = 2}).ok());
}

// Sample s of prompt p is number p * n + s.
TEST(Merge, OrdersABatchByPrompt) {
  const Samples of{.n = 2, .batch = 2};
  EXPECT_EQ(*MergeGenerate({R"([{"a":1},{"b":1}])", R"([ {"a":2}, {"b":2} ])"}, of),
            R"([{"a":1},{"a":2},{"b":1},{"b":2}])");
  EXPECT_FALSE(MergeGenerate({R"([{"a":1}])", R"([{"a":2},{"b":2}])"}, of).ok());
  EXPECT_FALSE(MergeGenerate({R"({"a":1})", R"([{"a":2},{"b":2}])"}, of).ok());
  EXPECT_EQ(*MergeOpenAi({R"({"choices":[{"index":0,"t":"a"},{"index":1,"t":"b"}]})",
                          R"({"choices":[{"index":0,"t":"c"},{"index":1,"t":"d"}]})"},
                         of),
            R"({"choices":[{"index":0,"t":"a"},{"index":1,"t":"c"},{"index":2,"t":"b"},)"
            R"({"index":3,"t":"d"}]})");
  EXPECT_EQ(*MergeGenerate({R"([{}])", R"([{}])"}, {.n = 2, .batch = 1}), "[{},{}]");
}

TEST(StreamMerger, PassesEventsAsTheyCome) {
  StreamMerger merger(BodyShape::kGenerate, {.n = 2});
  EXPECT_EQ(Fed(merger, 1, "data: {\"text\":\"b\"}\n\n"), "data: {\"index\":1,\"text\":\"b\"}\n\n");
  EXPECT_EQ(Fed(merger, 0, "data: {\"text\":"), "");
  EXPECT_GT(merger.held_bytes(), 0u);
  EXPECT_EQ(Fed(merger, 1, "data: [DONE]\n\n"), "");
  EXPECT_EQ(Fed(merger, 0, "\"a\"}\n"), "");
  EXPECT_EQ(Fed(merger, 0, "\n"), "data: {\"index\":0,\"text\":\"a\"}\n\n");
  EXPECT_EQ(merger.held_bytes(), 0u);
  EXPECT_EQ(Fed(merger, 0, ": still here\n\ndata: {\"error\":{\"code\":400}}\n\n"),
            ": still here\n\ndata: {\"error\":{\"code\":400}}\n\n");
  std::string end;
  EXPECT_TRUE(merger.End(&end).ok());
  EXPECT_EQ(end, "data: [DONE]\n\n");
}

TEST(StreamMerger, NumbersEachSampleOfEachPrompt) {
  StreamMerger generate(BodyShape::kGenerate, {.n = 3, .batch = 2});
  EXPECT_EQ(Fed(generate, 2, "data: {\"text\":\"\",\"index\":1}\n\n"),
            "data: {\"text\":\"\",\"index\":5}\n\n");
  StreamMerger chat(BodyShape::kChat, {.n = 3});
  EXPECT_EQ(Fed(chat, 2, "data: {\"choices\":[{\"delta\":{\"index\":7},\"index\":0}]}\n\n"),
            "data: {\"choices\":[{\"delta\":{\"index\":7},\"index\":2}]}\n\n");
  std::string out;
  EXPECT_FALSE(generate.Feed(0, "data: {\"index\":2}\n\n", &out).ok()) << "of two prompts";
  EXPECT_FALSE(chat.Feed(0, "data: {\"choices\":[{},{}]}\n\n", &out).ok());
  EXPECT_FALSE(chat.Feed(1, "data: nonsense\n\n", &out).ok());
}

TEST(StreamMerger, SaysTheUsageOnceForAll) {
  StreamMerger merger(BodyShape::kCompletion, {.n = 2});
  const std::string usage =
      "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"total_tokens\":7,"
      "\"completion_tokens\":2,\"reasoning_tokens\":1}}\n\n";
  EXPECT_EQ(Fed(merger, 0, usage), "");
  EXPECT_EQ(Fed(merger, 1, usage + "data: [DONE]\n\n"), "");
  std::string end;
  EXPECT_TRUE(merger.End(&end).ok());
  EXPECT_EQ(end,
            "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"total_tokens\":9,"
            "\"completion_tokens\":4,\"reasoning_tokens\":2}}\n\ndata: [DONE]\n\n");
}

}  // namespace
}  // namespace lorry::door
