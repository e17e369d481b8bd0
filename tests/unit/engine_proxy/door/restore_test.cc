#include "services/engine_proxy/door/restore.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "services/engine_proxy/door/ids.h"

namespace lorry::door {
namespace {

template <typename Restorer>
std::string Fed(Restorer&& restorer, std::string_view piece, bool end) {
  std::string out;
  restorer.Feed(piece, end, &out);
  return out;
}

const std::string kFirst = "00112233445566778899aabbfffffffe";

TEST(Ids, CountUpFromTheFirst) {
  const IdSeries ids(kFirst, 3);
  EXPECT_EQ(ids.At(0), kFirst);
  EXPECT_EQ(ids.At(2), "00112233445566778899aabb00000000");
  for (uint32_t i = 0; i < 3; ++i) EXPECT_EQ(ids.Find(ids.At(i)), i);
  EXPECT_EQ(ids.Find(ids.At(3)), std::nullopt);
  EXPECT_EQ(ids.Find(kFirst.substr(1)), std::nullopt);
  EXPECT_EQ(ids.Find("00112233445566778899aabbffffff-2"), std::nullopt);
}

TEST(IdRestorer, RestoresIdsThatAreCutAnywhere) {
  const std::string text =
      "{\"id\":\"" + kFirst + "\"}0011{\"id\":\"" + kFirst + "\"}" + kFirst.substr(0, 30) + "x001";
  const std::string expected =
      "{\"id\":\"my \\\"id\"}0011{\"id\":\"my \\\"id\"}" + kFirst.substr(0, 30) + "x001";
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    IdRestorer restorer(IdSeries(kFirst, 1), 1, {{"my \"id"}});
    std::string out;
    restorer.Feed(text.substr(0, cut), false, &out);
    restorer.Feed(text.substr(cut), false, &out);
    restorer.Feed("", true, &out);
    EXPECT_EQ(out, expected) << cut;
  }
}

TEST(IdRestorer, KnowsTheIdsOfABatch) {
  const IdSeries ids(kFirst, 4);  // two samples of two prompts
  const std::string text = ids.At(0) + " " + ids.At(1) + " " + ids.At(2) + " " + ids.At(3);
  EXPECT_EQ(Fed(IdRestorer(ids, 2, {{"a", "b"}}), text, true), "a b a b");
  EXPECT_EQ(Fed(IdRestorer(ids, 2, {{"mine"}, true}), text, true), "mine_0 mine_1 mine_0 mine_1");
  EXPECT_EQ(Fed(IdRestorer(ids, 2, {{"mine"}}), text, true), "mine mine mine mine");
}

// 4,096 ids once cost 4,096 searches of each byte: seconds a megabyte.
TEST(IdRestorer, CostsTheSameForManyIds) {
  const IdSeries ids(kFirst, 4096);
  std::string text;
  for (uint32_t i = 0; i < 4096; ++i)
    text += "{\"id\":\"" + ids.At(i) + "\"}" + std::string(512, 'x');
  IdRestorer restorer(ids, 4096, {{"r"}, true});
  std::string out;
  for (size_t at = 0; at < text.size(); at += 16384) {
    restorer.Feed(std::string_view(text).substr(at, 16384), false, &out);
  }
  restorer.Feed("", true, &out);
  EXPECT_NE(out.find("\"r_4095\""), std::string::npos);
  EXPECT_EQ(out.find(ids.shared()), std::string::npos);
}

TEST(LiveRequest, AbortsWhatHasAnsweredAndIsUnwantedOnce) {
  const IdSeries ids(kFirst, 4);  // two samples of two prompts
  LiveRequest live(ids, 2);
  EXPECT_TRUE(live.WantAbort(1).empty());
  const uint32_t first_sample[] = {0, 1};
  const uint32_t second_sample[] = {2, 3};
  EXPECT_EQ(live.Answered(first_sample), std::vector<std::string>{ids.At(1)});
  EXPECT_TRUE(live.Answered(first_sample).empty());
  EXPECT_EQ(live.WantAbort(), std::vector<std::string>{ids.At(0)});
  EXPECT_EQ(live.Answered(second_sample), (std::vector<std::string>{ids.At(2), ids.At(3)}));
  EXPECT_TRUE(live.WantAbort().empty());
  EXPECT_TRUE(LiveRequest(IdSeries(), 1).WantAbort().empty());
}

TEST(AnswerWatch, HearsThePromptsOfItsSampleOneByOne) {
  const IdSeries ids(kFirst, 6);  // two samples of three prompts
  const auto live = std::make_shared<LiveRequest>(ids, 3);
  AnswerWatch watch(live, 1);
  live->WantAbort();
  EXPECT_TRUE(watch.Heard("").empty());
  EXPECT_TRUE(watch.Heard(": a comment\n\n" + ids.At(0)).empty()) << "another sample's";
  EXPECT_EQ(watch.Heard(ids.At(5) + ids.At(3)), (std::vector<std::string>{ids.At(5), ids.At(3)}));
  EXPECT_TRUE(watch.Heard(ids.At(3)).empty()) << "once";
  std::vector<std::string> heard;
  for (const char c : ids.At(4)) heard = watch.Heard({&c, 1});
  EXPECT_EQ(heard, std::vector<std::string>{ids.At(4)}) << "in however many pieces it comes";
}

TEST(AnswerWatch, HearsOnePromptAtItsFirstByte) {
  const auto live = std::make_shared<LiveRequest>(IdSeries(kFirst, 2), 1);
  live->WantAbort();
  AnswerWatch watch(live, 1);
  EXPECT_TRUE(watch.Heard("").empty());
  EXPECT_EQ(watch.Heard("d"), std::vector<std::string>{IdSeries(kFirst, 2).At(1)});
}

TEST(LiveIds, FindsWhatTheClientMeans) {
  LiveIds live;
  const auto batch = std::make_shared<LiveRequest>(IdSeries(kFirst, 2), 2);
  const auto listed = std::make_shared<LiveRequest>(IdSeries(kFirst, 2), 2);
  const ClientIds numbered{{"r"}, true};
  const std::string longer(200, 'x');
  const ClientIds list{{longer + "a", longer + "b"}};
  live.Add(numbered, batch);
  live.Add(list, listed);
  ASSERT_EQ(live.Find("r").size(), 1u);
  EXPECT_EQ(live.Find("r")[0].prompt, std::nullopt);
  ASSERT_EQ(live.Find("r_1").size(), 1u);
  EXPECT_EQ(live.Find("r_1")[0].prompt, 1u);
  EXPECT_TRUE(live.Find("r_2").empty());
  EXPECT_TRUE(live.Find("").empty());
  ASSERT_EQ(live.Find(longer + "b").size(), 1u) << "and not the one that begins likewise";
  EXPECT_EQ(live.Find(longer + "b")[0].prompt, 1u);
  live.Remove(numbered, batch.get());
  live.Remove(list, listed.get());
  EXPECT_EQ(live.size(), 0u);
}

// The restored text, fed in pieces of each size.
std::string Restored(const std::string& text, const std::string& model = "\"policy\"") {
  std::string whole;
  ModelRestorer(model).Feed(text, &whole);
  for (size_t size = 1; size < text.size(); ++size) {
    ModelRestorer restorer(model);
    std::string out;
    for (size_t at = 0; at < text.size(); at += size) {
      restorer.Feed(std::string_view(text).substr(at, size), &out);
    }
    EXPECT_EQ(out, whole) << "in pieces of " << size;
  }
  return whole;
}

TEST(ModelRestorer, GivesTheNameBackWhereAReplyHasIt) {
  EXPECT_EQ(Restored(R"({"id":"x","created":1, "model" : "policy-v12-ab","choices":[{"a":"m"}]})"),
            R"({"id":"x","created":1, "model" : "policy","choices":[{"a":"m"}]})");
  EXPECT_EQ(Restored(R"({"model":"a\"\\"})", R"("p\u0041")"), R"({"model":"p\u0041"})");
  EXPECT_EQ(Restored(R"({"type":"message_start","message":{"id":"m","model":"x"},"usage":{}})"),
            R"({"type":"message_start","message":{"id":"m","model":"policy"},"usage":{}})");
  EXPECT_EQ(Restored(R"({"response":{"a":[1],"model":"x","model":"y"}})"),
            R"({"response":{"a":[1],"model":"policy","model":"y"}})");
  EXPECT_EQ(Restored(R"({"object":"list","data":[{"e":[0.1]}],"model":"x","usage":{}})"),
            R"({"object":"list","data":[{"e":[0.1]}],"model":"policy","usage":{}})");
}

TEST(ModelRestorer, TouchesNothingElse) {
  for (const char* text : {
           R"({"choices":[{"message":{"model":"x"}}],"metadata":{"model":"x"}})",
           R"({"text":"\"model\":\"x\"","a":"model","b":"x"})",
           R"({"a":{"message":{"model":"x"}}})",
           R"([{"model":"x"}])",
           R"({"model":null,"b":"x"})",
           R"({"model":["x"],"model_name":"x","b":{"model":"x"}})",
           R"({"message":"x","error":{"model":"x"}})",
           "{\n  \"choices\": [\n{\"model\":\"x\"}]\n}\n",
           "plain text\n",
           "",
       }) {
    EXPECT_EQ(Restored(text), text);
  }
}

TEST(ModelRestorer, ReadsEachEventOfAStream) {
  EXPECT_EQ(Restored("event: a\ndata: {\"model\":\"x\",\"t\":\"\\n\"}\n\n: c\n\n"
                     "data:{\"a\":{},\"model\":\"x\"}\r\n\r\ndata: [DONE]\n\n"),
            "event: a\ndata: {\"model\":\"policy\",\"t\":\"\\n\"}\n\n: c\n\n"
            "data:{\"a\":{},\"model\":\"policy\"}\r\n\r\ndata: [DONE]\n\n");
  EXPECT_EQ(Restored("data: {\"cut\":{\n\ndata: {\"model\":\"x\"}\n\n"),
            "data: {\"cut\":{\n\ndata: {\"model\":\"policy\"}\n\n");
}

TEST(ReplyRestorer, RestoresNamesAndIds) {
  ReplyRestorer both;
  both.ids.emplace(IdSeries(kFirst, 1), 1, ClientIds{{"mine"}});
  both.model.emplace("\"policy\"");
  EXPECT_EQ(Fed(both, "{\"id\":\"" + kFirst + "\",\"model\":\"base\"}", true),
            R"({"id":"mine","model":"policy"})");
}

// In one piece, and cut anywhere.
std::string Versioned(const std::string& text, const std::vector<std::string>& values) {
  const IdSeries ids(kFirst, 4);
  std::string whole;
  WeightVersions(values, ids).Feed(text, &whole);
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    WeightVersions versions(values, ids);
    std::string out;
    versions.Feed(text.substr(0, cut), &out);
    versions.Feed(text.substr(cut), &out);
    EXPECT_EQ(out, whole) << cut;
  }
  return whole;
}

std::string Generated(uint32_t number, const std::string& version) {
  return R"({"text":"\"meta_info\":{","output_ids":[1,22],"meta_info":{"id":")" +
         IdSeries(kFirst, 4).At(number) +
         R"(","finish_reason":{"type":"length"},"weight_version":)" + version +
         R"(,"output_token_logprobs":[[-1.5,1,null]]}})";
}
const std::string kLabel = R"("default")";

TEST(WeightVersions, AGenerationSaysWhatMadeIt) {
  EXPECT_EQ(Versioned(Generated(0, kLabel), {R"("12")"}), Generated(0, R"("12")"));
  const std::string stream = "data: " + Generated(0, kLabel) + "\n\ndata: " + Generated(0, kLabel) +
                             "\n\ndata: [DONE]\n\n";
  const std::string told = "data: " + Generated(0, R"("12")") +
                           "\n\ndata: " + Generated(0, R"("12")") + "\n\ndata: [DONE]\n\n";
  EXPECT_EQ(Versioned(stream, {R"("12")"}), told);
}

TEST(WeightVersions, OfABatchEachItsOwnWhateverTheirOrder) {
  // Of two prompts with two samples each: 3 is the second prompt's second one.
  const std::vector<std::string> two = {R"("12")", R"("13")"};
  EXPECT_EQ(Versioned("[" + Generated(3, kLabel) + ", " + Generated(2, kLabel) + "]", two),
            "[" + Generated(3, R"("13")") + ", " + Generated(2, R"("12")") + "]");
  EXPECT_EQ(Versioned("data: " + Generated(1, kLabel) + "\n\n", two),
            "data: " + Generated(1, R"("13")") + "\n\n");
}

TEST(WeightVersions, WhatNobodyKnowsStaysAsTheEngineSaysIt) {
  const std::vector<std::string> base_and_12 = {"", R"("12")"};
  EXPECT_EQ(Versioned(Generated(0, kLabel), base_and_12), Generated(0, kLabel));
  for (const std::string text :
       {R"({"weight_version":"default"})", R"({"meta_info":[{"weight_version":"default"}]})",
        R"({"meta_info":{"inner":{"weight_version":"default"}}})",
        R"({"meta_info":{"weight_version":null},"x":{"weight_version":"default"}})",
        R"([[{"meta_info":{"weight_version":"default"}}]])",
        R"({"meta_info":{"id":"another","weight_version":"default"}})"}) {
    EXPECT_EQ(Versioned(text, {R"("12")", R"("13")"}), text);
  }
}

}  // namespace
}  // namespace lorry::door
