#include "lib/peft/config.h"

#include <gtest/gtest.h>

#include <set>

#include "lib/base/digest.h"
#include "lib/peft/json.h"
#include "lib/peft/refusal.h"
#include "tests/unit/peft/test_image.h"

namespace lorry::peft {
namespace {

using nlohmann::json;

// A minimal good config with `fields` laid over it.
std::string With(const json& fields = json::object()) {
  json config = {
      {"peft_type", "LORA"}, {"r", 8}, {"lora_alpha", 16}, {"target_modules", {"q_proj"}}};
  config.update(fields);
  return config.dump();
}

std::string Canonical(std::string_view text) {
  const auto config = ParseConfig(text);
  EXPECT_THAT(config, IsOk());
  if (!config.ok()) return "";
  const auto canonical = CanonicalConfig(*config);
  EXPECT_THAT(canonical, IsOk());
  return canonical.value_or("");
}

TEST(CanonicalConfig, MatchesTheGoldenVectors) {
  for (const auto& golden : ReadGolden("configs.json")) {
    SCOPED_TRACE(golden["why"].get<std::string>());
    const std::string canonical = Canonical(golden["config"].get<std::string>());
    EXPECT_EQ(canonical, golden["canonical"].get<std::string>());
    EXPECT_EQ(ToHex(HashSha256(canonical)), golden["sha256"].get<std::string>());
    EXPECT_EQ(Canonical(canonical), canonical) << "a canonical config is its own canonical form";
  }
}

TEST(CanonicalConfig, ChangesWithEveryFieldThatChangesTheResult) {
  std::set<std::string> seen = {Canonical(With())};
  for (const json& change :
       {json{{"r", 9}}, json{{"lora_alpha", 17}}, json{{"use_rslora", true}},
        json{{"fan_in_fan_out", true}}, json{{"rank_pattern", {{"q_proj", 4}}}},
        json{{"alpha_pattern", {{"q_proj", 4}}}}, json{{"target_modules", {"v_proj"}}},
        json{{"target_modules", "q_proj"}}, json{{"exclude_modules", {"v_proj"}}},
        json{{"layers_to_transform", {1}}}, json{{"layers_pattern", "h"}}}) {
    EXPECT_TRUE(seen.insert(Canonical(With(change))).second) << change;
  }
}

TEST(Config, CarriesWhatEnginesAreToldAlong) {
  const auto config =
      ParseConfig(With({{"base_model_name_or_path", "/models/tiny"}, {"task_type", "CAUSAL_LM"}}));
  ASSERT_THAT(config, IsOk());
  EXPECT_EQ(config->base_model_name_or_path, "/models/tiny");
  EXPECT_EQ(config->task_type, "CAUSAL_LM");
}

TEST(Config, TakesWhatLiesAtItsLimits) {
  const auto config = ParseConfig(With(
      {{"r", kRankMax}, {"lora_alpha", -1e9}, {"use_rslora", nullptr}, {"rank_pattern", nullptr}}));
  ASSERT_THAT(config, IsOk());
  EXPECT_EQ(config->r, kRankMax);
  EXPECT_EQ(config->lora_alpha, -1e9);
  EXPECT_THAT(ParseConfig(With({{"lora_alpha", -16}})), IsOk());
  const size_t without = With({{"revision", ""}}).size();
  EXPECT_THAT(ParseConfig(With({{"revision", std::string(kConfigBytesMax - without, 'x')}})),
              IsOk());
  // The config itself is the first level.
  const auto nested = [](size_t depth) {
    return "{\"x\":" + std::string(depth - 1, '[') + "1" + std::string(depth - 1, ']') + "}";
  };
  EXPECT_THAT(ParseConfig(nested(kConfigDepthMax)), RefusedAs("ADAPTER_KIND_UNSUPPORTED"));
  EXPECT_THAT(ParseConfig(nested(kConfigDepthMax + 1)),
              RefusedSaying("CONFIG_MALFORMED", "nests deeper than 16"));
}

TEST(Config, WhatWasClosedNeitherNestsNorNames) {
  json list = json::array();
  for (size_t i = 0; i < 2 * kConfigDepthMax; ++i) list.push_back(json{{"r", json::array()}});
  EXPECT_THAT(ParseConfig(With({{"revision", list}})), IsOk());
}

TEST(Config, OtherKindsOfAdaptersAreRefusedByName) {
  const std::vector<std::pair<json, std::string_view>> cases = {
      {{{"peft_type", "IA3"}}, "ADAPTER_KIND_UNSUPPORTED"},
      {{{"peft_type", "PREFIX_TUNING"}}, "ADAPTER_KIND_UNSUPPORTED"},
      {{{"peft_type", "ADALORA"}}, "ADAPTER_KIND_UNSUPPORTED"},
      {{{"peft_type", nullptr}}, "ADAPTER_KIND_UNSUPPORTED"},
      {{{"peft_type", 7}}, "ADAPTER_KIND_UNSUPPORTED"},
      {{{"use_dora", true}}, "DORA_UNSUPPORTED"},
      {{{"bias", "all"}}, "BIAS_UNSUPPORTED"},
      {{{"bias", "lora_only"}}, "BIAS_UNSUPPORTED"},
      {{{"lora_bias", true}}, "BIAS_UNSUPPORTED"},
      {{{"modules_to_save", {"lm_head"}}}, "MODULES_TO_SAVE_UNSUPPORTED"},
      {{{"trainable_token_indices", {1, 2}}}, "EMBEDDING_UNSUPPORTED"},
      {{{"init_lora_weights", "pissa_niter_4"}}, "CONFIG_UNSUPPORTED"},
      {{{"init_lora_weights", "olora"}}, "CONFIG_UNSUPPORTED"},
      {{{"layer_replication", {{0, 2}}}}, "CONFIG_UNSUPPORTED"},
      {{{"alora_invocation_tokens", {1}}}, "CONFIG_UNSUPPORTED"},
      {{{"use_qalora", true}}, "CONFIG_UNSUPPORTED"},
      {{{"target_parameters", {"experts.gate_up_proj"}}}, "CONFIG_UNSUPPORTED"},
      {{{"a_field_of_tomorrow", 1}}, "CONFIG_FIELD_UNKNOWN"},
      {{{"a_field_of_tomorrow", {{"x", 0}}}}, "CONFIG_FIELD_UNKNOWN"},
  };
  for (const auto& [fields, reason] : cases)
    EXPECT_THAT(ParseConfig(With(fields)), RefusedAs(reason)) << fields;
}

TEST(Config, AMergedSyncIsOfferedForWhatEnginesLack) {
  const auto status = ParseConfig(With({{"peft_type", "IA3"}})).status();
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("sync merged weights instead"));
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("peft_type is \"IA3\""));
  EXPECT_THAT(ParseConfig(With({{"peft_type", 7}})),
              RefusedSaying("ADAPTER_KIND_UNSUPPORTED", "peft_type is missing"));
  const auto stacked =
      ParseConfig(With({{"target_parameters", {"experts.gate_up_proj"}}})).status();
  EXPECT_THAT(std::string(stacked.message()),
              testing::AllOf(testing::HasSubstr("those of qwen2_moe and qwen3_moe"),
                             testing::HasSubstr("sync merged weights instead")));
  const auto unknown = ParseConfig(With({{"a_field_of_tomorrow", 1}})).status();
  EXPECT_THAT(std::string(unknown.message()), testing::HasSubstr("a_field_of_tomorrow"));
}

TEST(Config, UnknownFieldsThatSayNothingAreIgnored) {
  for (const json& empty :
       {json(nullptr), json(false), json(0), json(0.0), json(""), json::array(), json::object()}) {
    EXPECT_THAT(ParseConfig(With({{"a_field_of_tomorrow", empty}})), IsOk()) << empty;
  }
  EXPECT_THAT(ParseConfig(With({{"init_lora_weights", true}, {"lora_dropout", 0.5}})), IsOk());
}

TEST(Config, RefusesWrongTypesAndSizes) {
  for (const json& fields : {json{{"r", 0}},
                             json{{"r", -1}},
                             json{{"r", 8.5}},
                             json{{"r", "8"}},
                             json{{"r", nullptr}},
                             json{{"r", kRankMax + 1}},
                             json{{"r", 1e300}},
                             json{{"lora_alpha", "16"}},
                             json{{"lora_alpha", 1e10}},
                             json{{"use_rslora", 1}},
                             json{{"fan_in_fan_out", "no"}},
                             json{{"target_modules", 1}},
                             json{{"target_modules", {1}}},
                             json{{"exclude_modules", {{"a", 1}}}},
                             json{{"exclude_modules", {{"a", "q_proj"}}}},
                             json{{"layers_to_transform", {{"a", 1}}}},
                             json{{"rank_pattern", {"q_proj"}}},
                             json{{"rank_pattern", json::array({4})}},
                             json{{"rank_pattern", {{"q_proj", 0}}}},
                             json{{"alpha_pattern", {{"q_proj", "x"}}}},
                             json{{"layers_to_transform", {-1}}},
                             json{{"layers_to_transform", "all"}},
                             json{{"layers_pattern", 3}},
                             json{{"base_model_name_or_path", 3}},
                             json{{"task_type", true}}}) {
    EXPECT_THAT(ParseConfig(With(fields)), RefusedAs("CONFIG_MALFORMED")) << fields;
  }
}

TEST(Config, RefusesWhatIsNoBoundedJsonObject) {
  const std::string good = With();
  const std::vector<std::pair<std::string_view, std::string>> cases = {
      {"nothing", ""},
      {"a list", "[]"},
      {"cut short", good.substr(0, good.size() - 1)},
      {"something behind", good + "{}"},
      {"a NUL behind", good + std::string(1, '\0')},
      {"NaN, as Python writes it", R"({"peft_type":"LORA","lora_alpha":NaN})"},
      {"a key twice", R"({"peft_type":"LORA","r":8,"r":16})"},
      {"an inner key twice", R"({"peft_type":"LORA","rank_pattern":{"a":8,"a":16}})"},
      {"a NUL in front of something", "{}" + std::string(1, '\0') + "{}"},
      {"too deep", "{\"x\":" + std::string(100000, '[')},
      {"too long", With({{"revision", std::string((1u << 20) + 1, 'x')}})},
      {"not UTF-8", "{\"peft_type\":\"LORA\",\"task_type\":\"\xff\"}"},
  };
  for (const auto& [why, text] : cases)
    EXPECT_THAT(ParseConfig(text), RefusedAs("CONFIG_MALFORMED")) << why;
}

TEST(Patterns, MatchAsPeftDoes) {
  const std::string path = "model.layers.10.self_attn.q_proj";
  EXPECT_EQ(MatchesPattern("q_proj", path), true);
  EXPECT_EQ(MatchesPattern("self_attn.q_proj", path), true);
  EXPECT_EQ(MatchesPattern("self_attn\\.q_proj", path), true);
  EXPECT_EQ(MatchesPattern("layers.10.self_attn.q_proj", path), true);
  EXPECT_EQ(MatchesPattern("layers.0.self_attn.q_proj", path), false);
  EXPECT_EQ(MatchesPattern("proj", path), false) << "only whole components";
  EXPECT_EQ(MatchesPattern("^q_proj", path), false);
  EXPECT_EQ(MatchesPattern("^" + path, path), true);
  EXPECT_EQ(MatchesPattern("q.proj", path), true) << "a dot is any byte";
  EXPECT_EQ(MatchesPattern("layers\\.(0|1)\\..*", path), std::nullopt);
  EXPECT_EQ(MatchesPattern(".*q_proj", path), std::nullopt);
  EXPECT_EQ(MatchesPattern("self\\.attn.q_proj", path), false) << "an escaped dot is a dot";
  EXPECT_EQ(MatchesPattern("q\\dproj", path), std::nullopt);
  EXPECT_EQ(MatchesPattern("q(.proj", path), std::nullopt);
  EXPECT_EQ(MatchesPattern("q_proj\\", path), std::nullopt);
  EXPECT_EQ(MatchesPattern(std::string_view("q_proj\\.").substr(0, 7), path), std::nullopt);
  EXPECT_EQ(MatchesPattern("", path), false);
  EXPECT_EQ(MatchesPattern("x." + path, path), false) << "longer than the path";
  EXPECT_EQ(MatchesPattern("layer-0_9azAZ", "m.layer-0_9azAZ"), true);
  for (const std::string_view other : {"a/", "a:", "a@", "a[", "a`", "a{"}) {
    EXPECT_EQ(MatchesPattern(other, path), std::nullopt) << other;
  }
}

TEST(Patterns, SayTheRankAndAlphaOfAModule) {
  const auto config =
      ParseConfig(With({{"rank_pattern", {{"q_proj", 4}}}, {"alpha_pattern", {{"v_proj", 2.5}}}}));
  ASSERT_THAT(config, IsOk());
  EXPECT_EQ(RankOf(*config, "model.layers.0.self_attn.q_proj"), 4u);
  EXPECT_EQ(RankOf(*config, "model.layers.0.self_attn.v_proj"), 8u);
  EXPECT_EQ(AlphaOf(*config, "model.layers.0.self_attn.v_proj"), 2.5);
  EXPECT_EQ(AlphaOf(*config, "model.layers.0.self_attn.q_proj"), 16);
  const auto expression = ParseConfig(With({{"alpha_pattern", {{".*q_proj", 4}}}}));
  EXPECT_EQ(AlphaOf(*expression, "model.layers.0.self_attn.q_proj"), std::nullopt);
}

TEST(JsonNumber, WritesWhatPythonWrites) {
  const std::vector<std::pair<double, std::string_view>> cases = {
      {0, "0"},
      {-3, "-3"},
      {0.509, "0.509"},
      {-1.25, "-1.25"},
      {1e-4, "0.0001"},
      {1.5e-5, "1.5e-05"},
      {9007199254740991, "9007199254740991"},
      {9007199254740992, "9007199254740992.0"},
      {9.5e15, "9500000000000000.0"},
      {1e16, "1e+16"}};
  for (const auto& [value, text] : cases) EXPECT_EQ(JsonNumber(value), text);
}

TEST(WholeNumber, EndsAtTheLargestOf32Bits) {
  EXPECT_EQ(WholeNumber(json(4294967295.0)), 4294967295u);
  EXPECT_EQ(WholeNumber(json(4294967296.0)), std::nullopt);
  EXPECT_EQ(WholeNumber(json(0)), 0u);
  EXPECT_EQ(WholeNumber(json(0.5)), std::nullopt);
  EXPECT_EQ(WholeNumber(json("1")), std::nullopt);
}

TEST(Quoted, CutsAfterTheLongestRealName) {
  EXPECT_EQ(Quoted(std::string(160, 'x')), "\"" + std::string(160, 'x') + "\"");
  EXPECT_EQ(Quoted(std::string(161, 'x')), "\"" + std::string(160, 'x') + "...\"");
}

}  // namespace
}  // namespace lorry::peft
