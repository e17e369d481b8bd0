#include "lib/peft/render.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/unit/peft/test_image.h"

namespace lorry::peft {
namespace {

using nlohmann::json;

const std::vector<std::string> kModules = {"q_proj", "v_proj"};

Config ConfigWith(const json& fields = json::object()) {
  json all = {
      {"peft_type", "LORA"}, {"r", 8}, {"lora_alpha", 16}, {"target_modules", "all-linear"}};
  all.update(fields);
  return ParseConfig(all.dump()).value();
}

json Render(const Config& config, const RenderOptions& options = {}) {
  const auto text = RenderConfig(config, kModules, options);
  EXPECT_THAT(text, IsOk());
  return json::parse(text.value_or("{}"));
}

TEST(Render, HasWhatBothEnginesRead) {
  const json rendered =
      Render(ConfigWith({{"task_type", "CAUSAL_LM"}, {"base_model_name_or_path", "/models/tiny"}}));
  EXPECT_EQ(rendered["peft_type"], "LORA");
  EXPECT_EQ(rendered["r"], 8);
  EXPECT_EQ(rendered["lora_alpha"], 16);
  EXPECT_TRUE(rendered["lora_alpha"].is_number_integer()) << "vLLM declares an int";
  EXPECT_EQ(rendered["target_modules"], json(kModules)) << "never an expression";
  EXPECT_EQ(rendered["use_dora"], false);
  EXPECT_EQ(rendered["bias"], "none");
  EXPECT_TRUE(rendered["modules_to_save"].is_null());
  EXPECT_EQ(rendered["base_model_name_or_path"], "/models/tiny");
  EXPECT_EQ(rendered["task_type"], "CAUSAL_LM");
}

TEST(Render, SaysOfWhatIsNotSetThatItIsNot) {
  const json rendered = Render(ConfigWith());
  for (const char* field : {"base_model_name_or_path", "task_type", "exclude_modules",
                            "layers_pattern", "layers_to_transform"}) {
    EXPECT_TRUE(rendered[field].is_null()) << field;
  }
  EXPECT_EQ(rendered["inference_mode"], true);
  EXPECT_EQ(rendered["use_rslora"], false);
  EXPECT_EQ(Render(ConfigWith({{"exclude_modules", ".*head"}}))["exclude_modules"], ".*head");
}

TEST(Render, KeepsTheLettersOfAName) {
  const auto text = RenderConfig(ConfigWith(), kModules, {.base_model_name_or_path = "modèle"});
  EXPECT_NE(text->find("modèle"), std::string::npos);
}

TEST(Render, TheBaseCanBeNamedAnew) {
  const Config config = ConfigWith({{"base_model_name_or_path", "/trainer/model"}});
  EXPECT_EQ(Render(config, {.base_model_name_or_path = "/engine/model"})["base_model_name_or_path"],
            "/engine/model");
}

TEST(Render, WhatIsRenderedReadsBackAsTheSame) {
  Config config = ConfigWith({{"use_rslora", true},
                              {"lora_alpha", 1.5},
                              {"rank_pattern", {{"q_proj", 4}}},
                              {"alpha_pattern", {{"v_proj", 2.25}}},
                              {"layers_to_transform", {1, 2}},
                              {"exclude_modules", {"lm_head"}},
                              {"layers_pattern", {"layers"}}});
  const auto text = RenderConfig(config, kModules, {});
  ASSERT_THAT(text, IsOk());
  const auto again = ParseConfig(*text);
  ASSERT_THAT(again, IsOk());
  config.target_modules = {.names = kModules, .expression = ""};
  EXPECT_EQ(*again, config);
  EXPECT_EQ(*RenderConfig(*again, kModules, {}), *text);
}

TEST(Render, FoldingKeepsTheScale) {
  const Config config = ConfigWith({{"use_rslora", true}, {"alpha_pattern", {{"q_proj", 4}}}});
  const json folded = Render(config, {.fold_rslora = true});
  EXPECT_EQ(folded["use_rslora"], false);
  EXPECT_DOUBLE_EQ(folded["lora_alpha"].get<double>() / 8, 16 / std::sqrt(8.0));
  EXPECT_DOUBLE_EQ(folded["alpha_pattern"]["q_proj"].get<double>() / 8, 4 / std::sqrt(8.0));
  EXPECT_EQ(Render(config)["use_rslora"], true);
}

TEST(Render, FoldingAPlainLoraChangesNothing) {
  const Config config = ConfigWith();
  EXPECT_EQ(Render(config, {.fold_rslora = true}), Render(config));
}

TEST(Render, FoldingSeveralRanksIsRefused) {
  const Config config = ConfigWith({{"use_rslora", true}, {"rank_pattern", {{"q_proj", 4}}}});
  EXPECT_THAT(RenderConfig(config, kModules, {.fold_rslora = true}),
              RefusedSaying("RENDER_INEXACT", "; train with one r and one lora_alpha"))
      << "no other engine kind would take it";
}

}  // namespace
}  // namespace lorry::peft
