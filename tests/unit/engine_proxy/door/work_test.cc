// How the door's work grows with long prompts and with many ids. Its files are compiled for this test
// so that each of their basic blocks reports here that it runs: a count that does not depend on how
// busy the machine is. What the standard library does is not in it.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "services/engine_proxy/door/body_facts.h"
#include "services/engine_proxy/door/ids.h"
#include "services/engine_proxy/door/rewrite.h"

namespace {
uint64_t blocks = 0;
}  // namespace

extern "C" void __sanitizer_cov_trace_pc() { ++blocks; }

namespace lorry::door {
namespace {

template <typename F>
uint64_t WorkOf(F work) {
  const uint64_t before = blocks;
  work();
  return blocks - before;
}

// Four times as much of it is four times the work, and not sixteen times.
template <typename F>
void ExpectLinear(F of) {
  constexpr uint32_t kSize = 1024;
  const uint64_t one = WorkOf([&] { of(kSize); });
  const uint64_t four = WorkOf([&] { of(4 * kSize); });
  EXPECT_GT(one, kSize) << "counts nothing";
  EXPECT_LT(four, 5 * one) << one << " blocks, then " << four;
}

const std::string kFirst = "00112233445566778899aabbccddee00";

std::string TokenIds(uint32_t size) {
  std::string list = "[";
  for (uint32_t i = 0; i < size; ++i) list += (i == 0 ? "" : ",") + std::to_string(i % 100 + 1234);
  return list + "]";
}

std::string ListOf(uint32_t size, std::string_view item) {
  std::string list = "[";
  for (uint32_t i = 0; i < size; ++i) {
    list += i == 0 ? "" : ",";
    list += item;
  }
  return list + "]";
}

void Rewrite(const std::string& text) {
  const EngineFacts engine{.base_models = {"base"}};
  const PaddedBody body = PaddedBody::Lent(text);
  const auto facts = ReadBody(fleet::EngineKind::kSglang, BodyShape::kGenerate, engine, body);
  EXPECT_TRUE(facts.ok()) << facts.status();
  const IdSeries series(kFirst, static_cast<uint32_t>(facts->prompts()));
  std::vector<std::string> ids;
  for (uint32_t i = 0; i < series.size(); ++i) ids.push_back(series.At(i));
  const std::vector<Resolved> resolved(facts->adapters.size());
  const SplicedBody spliced(
      body.view(), RewriteEdits(fleet::EngineKind::kSglang, BodyShape::kGenerate, engine, *facts,
                                resolved, ids));
}

std::string Generate(std::string_view key, const std::string& value) {
  return R"({"lora_path":"policy","sampling_params":{"n":1},")" + std::string(key) + "\":" + value +
         "}";
}

TEST(Work, GrowsWithTheTokenIdsOfAPrompt) {
  ExpectLinear([](uint32_t size) { Rewrite(Generate("input_ids", TokenIds(size))); });
}

uint64_t WorkOfPrompt(std::string_view key, const std::string& value) {
  const std::string body = Generate(key, value);
  return WorkOf([&] { Rewrite(body); });
}

TEST(Work, OfATokenIdIsThatOfItsBytes) {
  const std::string list = TokenIds(32'768);
  const uint64_t of_ids = WorkOfPrompt("input_ids", list);
  const uint64_t of_text = WorkOfPrompt("text", '"' + std::string(list.size() - 2, 'a') + '"');
  EXPECT_LT(of_ids, 3 * of_text) << "no number is read";
}

// Blocks of token ids are looked for at each number, though not where one was looked for already.
TEST(Work, OfNumbersThatAreNoTokenIdsIsNotThatOfBothWays) {
  const uint64_t one_way = WorkOfPrompt("input_ids", ListOf(4096, "0.125"));  // 0 begins no block
  EXPECT_LT(WorkOfPrompt("input_ids", ListOf(4096, "1.125")), 2 * one_way);
}

TEST(Work, GrowsWithTheIdsOfABatch) {
  ExpectLinear([](uint32_t size) {
    Rewrite(R"({"rid":)" + ListOf(size, "\"r\"") + R"(,"text":)" + ListOf(size, "\"a\"") +
            R"(,"lora_path":)" + ListOf(size, "\"p\"") + "}");
  });
}

TEST(Work, GrowsWithTheReplyOfABatch) {
  ExpectLinear([](uint32_t size) {
    const IdSeries ids(kFirst, size);
    IdRestorer restorer(ids, size, {{"r"}, true});
    std::string out;
    for (uint32_t i = 0; i < size; ++i) {
      restorer.Feed("data: {\"id\":\"" + ids.At(i) + "\",\"text\":\"some\"}\n\n", i + 1 == size,
                    &out);
    }
    EXPECT_EQ(out.find(ids.shared()), std::string::npos);
  });
}

// The prompts of a batch answer one by one, and each piece of the stream is looked at.
TEST(Work, GrowsWithTheAnswersOfABatch) {
  ExpectLinear([](uint32_t size) {
    const auto live = std::make_shared<LiveRequest>(IdSeries(kFirst, size), size);
    AnswerWatch watch(live, 0);
    for (uint32_t i = 0; i < size; ++i) watch.Heard("data: {\"id\":\"" + live->ids().At(i) + "\"}");
    EXPECT_EQ(live->WantAbort().size(), size);
  });
}

TEST(Work, GrowsWithTheIdsThatCanBeAborted) {
  ExpectLinear([](uint32_t size) {
    LiveIds live;
    const auto request = std::make_shared<LiveRequest>(IdSeries(kFirst, size), size);
    for (const bool same : {false, true}) {
      ClientIds ids;
      for (uint32_t i = 0; i < size; ++i) ids.given.push_back(same ? "r" : std::to_string(i));
      live.Add(ids, request);
      live.Remove(ids, request.get());
    }
    EXPECT_EQ(live.size(), 0u);
  });
}

}  // namespace
}  // namespace lorry::door
