// What frameworks write of memory and weights, in each engine's own words.
#include "services/engine_proxy/calls/memory_calls.h"

#include <string>

#include "absl/strings/str_join.h"
#include "gtest/gtest.h"

namespace lorry::calls {
namespace {

using fleet::EngineKind;

// "release kv_cache,weights", or why not.
std::string Said(EngineKind engine, std::string path, std::string query, std::string body) {
  const auto read = ReadMemoryCall({.engine = engine,
                                    .path = std::move(path),
                                    .query = std::move(query),
                                    .body = std::move(body)});
  if (!read.has_value()) return "no such call";
  if (const auto* refused = std::get_if<door::Refused>(&*read))
    return std::to_string(refused->status) + " " + refused->reason;
  const auto& call = std::get<proxy::FrameworkCall>(*read);
  if (const auto* release = std::get_if<proxy::ReleaseCall>(&call))
    return "release " + absl::StrJoin(release->tags, ",");
  if (const auto* wake = std::get_if<proxy::WakeCall>(&call))
    return "wake " + absl::StrJoin(wake->tags, ",");
  return std::holds_alternative<proxy::WeightsCall>(call) ? "weights" : "another";
}
std::string Sglang(std::string path, std::string body) {
  return Said(EngineKind::kSglang, std::move(path), "", std::move(body));
}
std::string Vllm(std::string path, std::string query) {
  return Said(EngineKind::kVllm, std::move(path), std::move(query), "");
}

TEST(MemoryCalls, SglangNamesPartsInItsBody) {
  const std::string all = "cuda_graph,kv_cache,weights";
  for (const char* body : {"", "{}", R"({"tags":null})", R"({"tags": []})"}) {
    EXPECT_EQ(Sglang("/release_memory_occupation", body), "release " + all) << body;
    EXPECT_EQ(Sglang("/resume_memory_occupation", body), "wake " + all) << body;
  }
  EXPECT_EQ(Sglang("/release_memory_occupation", R"({"a":[1],"tags":["weights","kv_cache"]})"),
            "release kv_cache,weights");
  EXPECT_EQ(Sglang("/resume_memory_occupation", R"({"tags":["weights"]})"), "wake weights");
}

TEST(MemoryCalls, WhatSglangCannotMeanIsRefused) {
  const std::string long_one = R"({"tags":[")" + std::string(10'000, 'a') + "\"]}";
  for (const std::string& body :
       {std::string("["), std::string(R"({"tags":"weights"})"), std::string(R"({"tags":[1]})"),
        std::string(R"({"tags":["scheduling"]})"), std::string(R"({"tags":["weights","more"]})"),
        std::string(R"({"tags":{"weights":1}})"), long_one,
        R"({"tags":)" + std::string(200, '[') + "}", std::string("\xff")}) {
    EXPECT_EQ(Sglang("/release_memory_occupation", body), "400 REQUEST_INVALID") << body;
    EXPECT_EQ(Sglang("/resume_memory_occupation", body), "400 REQUEST_INVALID") << body;
  }
}

TEST(MemoryCalls, VllmSleepsByLevelAndWakesByTags) {
  for (const char* query : {"", "?level=1", "?level=2&mode=wait", "?mode=abort"})
    EXPECT_EQ(Vllm("/sleep", query), "release kv_cache,weights") << query;
  for (const char* query : {"?level=0", "?level=3", "?level=", "?level=1&level=0"})
    EXPECT_EQ(Vllm("/sleep", query), "400 REQUEST_INVALID") << query;
  EXPECT_EQ(Vllm("/wake_up", ""), "wake kv_cache,scheduling,weights");
  EXPECT_EQ(Vllm("/wake_up", "?tags=weights"), "wake weights");
  EXPECT_EQ(Vllm("/wake_up", "?tags=weights&tags=kv_cache"), "wake kv_cache,weights");
  EXPECT_EQ(Vllm("/wake_up", "?tags=cuda_graph"), "400 REQUEST_INVALID");
}

TEST(MemoryCalls, WeightsAreNotLookedAt) {
  for (const char* path : {"/update_weights_from_disk", "/update_weights_from_tensor",
                           "/update_weights_from_distributed", "/update_weights_from_ipc"}) {
    EXPECT_EQ(Sglang(path, "not JSON"), "weights") << path;
    EXPECT_EQ(Vllm(path, ""), "no such call") << path;
  }
  for (const char* path :
       {"/start_weight_update", "/update_weights", "/finish_weight_update", "/collective_rpc",
        "/areal_update_weights", "/areal_update_weights_xccl"}) {
    EXPECT_EQ(Vllm(path, ""), "weights") << path;
    EXPECT_EQ(Sglang(path, ""), "no such call") << path;
  }
}

}  // namespace
}  // namespace lorry::calls
