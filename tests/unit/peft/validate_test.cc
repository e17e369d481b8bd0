#include "lib/peft/validate.h"

#include <gtest/gtest.h>

#include "tests/unit/peft/test_image.h"

namespace lorry::peft {
namespace {

using nlohmann::json;

constexpr char kQ[] = "model.layers.0.self_attn.q_proj";
constexpr char kV[] = "model.layers.1.self_attn.v_proj";

const BaseModel kBase{.hidden_size = 16,
                      .layers = 2,
                      .complete = true,
                      .intermediate_size = 32,
                      .heads = 4,
                      .kv_heads = 2,
                      .head_dim = 4,
                      .vocab_size = 64};

Config ConfigWith(const json& fields = json::object()) {
  json all = {{"peft_type", "LORA"}, {"r", 8}, {"lora_alpha", 16}};
  all.update(fields);
  return ParseConfig(all.dump()).value();
}

absl::StatusOr<Adapter> Validate(const TestImage& image, const Config& config = ConfigWith()) {
  return ValidateAdapter(image.Header(), config);
}

absl::Status Fits(const TestImage& image, const BaseModel& base = kBase) {
  const auto adapter = Validate(image);
  return adapter.ok() ? CheckFits(*adapter, base) : adapter.status();
}

TEST(Validate, APlainLoraPasses) {
  const auto adapter = Validate(TestImage().Module(kQ, 16, 16).Module(kV, 16, 8, 8, Dtype::kBf16));
  ASSERT_THAT(adapter, IsOk());
  ASSERT_EQ(adapter->modules.size(), 2u);
  const AdapterModule& v = adapter->modules[1];
  EXPECT_EQ(v.path, kV);
  EXPECT_EQ(v.rank, 8u);
  EXPECT_EQ(v.in, 16u);
  EXPECT_EQ(v.out, 8u);
}

TEST(Validate, WhatTheSafetensorsPackageWroteForPeftPasses) {
  const auto header = Parse(ReadTestdata("images/lora_bf16.safetensors"));
  ASSERT_THAT(header, IsOk());
  const auto adapter = ValidateAdapter(*header, ConfigWith({{"r", 4}}));
  ASSERT_THAT(adapter, IsOk());
  EXPECT_EQ(adapter->modules.size(), 36u);
  EXPECT_EQ(adapter->traits.modules, (std::vector<std::string>{"k_proj", "q_proj", "v_proj"}));
}

TEST(Validate, BothTensorsOfAModuleAreNeeded) {
  EXPECT_THAT(Validate(TestImage().Tensor("base_model.model.x.lora_A.weight", Dtype::kF32, {8, 16}),
                       ConfigWith()),
              RefusedSaying("TENSOR_UNPAIRED", "has no lora_B"));
  EXPECT_THAT(Validate(TestImage().Tensor("base_model.model.x.lora_B.weight", Dtype::kF32, {16, 8}),
                       ConfigWith()),
              RefusedSaying("TENSOR_UNPAIRED", "has no lora_A"));
}

TEST(Validate, NamesMustBeCanonicalLoraNames) {
  const auto with = [](std::string name) {
    return Validate(TestImage().Module(kQ, 16, 16).Tensor(std::move(name), Dtype::kF32, {8, 16}));
  };
  EXPECT_THAT(with("base_model.model.model.layers.0.mlp.up_proj.lora_A.default.weight"),
              RefusedAs("TENSOR_UNKNOWN"));
  EXPECT_THAT(with("model.layers.0.mlp.up_proj.lora_A.weight"), RefusedAs("TENSOR_UNKNOWN"));
  EXPECT_THAT(with("base_model.model.model.norm.weight"), RefusedAs("TENSOR_UNKNOWN"));
  EXPECT_THAT(with("base_model.model.model.embed_tokens.weight"),
              RefusedAs("EMBEDDING_UNSUPPORTED"));
  EXPECT_THAT(with("base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector"),
              RefusedAs("DORA_UNSUPPORTED"));
  EXPECT_THAT(with("base_model.model.score.modules_to_save.weight"),
              RefusedAs("MODULES_TO_SAVE_UNSUPPORTED"));
}

TEST(Validate, EnginesServeNoLoraBesideTheTextModel) {
  const auto with = [](const char* path) { return Validate(TestImage().Module(path, 16, 16)); };
  EXPECT_THAT(with("model.visual.blocks.0.attn.qkv"),
              RefusedSaying("TOWER_UNSUPPORTED", "exclude_modules=\".*visual.*\""));
  for (const char* path :
       {"model.vision_tower.vision_model.encoder.layers.3.self_attn.q_proj",
        "visual.layers.9.attn.q_proj", "thinker.audio_tower.conv_out",
        "multi_modal_projector.linear_1", "model.embed_vision.embedding_projection"}) {
    EXPECT_THAT(with(path), RefusedAs("TOWER_UNSUPPORTED")) << path;
  }
  for (const char* path : {"model.language_model.layers.3.self_attn.q_proj", "lm_head",
                           "model.layers.3.self_attn.vision_expert_dense", "supervision.proj"}) {
    EXPECT_THAT(with(path), IsOk()) << path;
  }
}

TEST(Validate, OnlyTypesThatEnginesReadPass) {
  for (const Dtype dtype : {Dtype::kF64, Dtype::kI32, Dtype::kU8, Dtype::kF8E4M3, Dtype::kBool}) {
    EXPECT_THAT(Validate(TestImage().Module(kQ, 16, 16, 8, dtype)), RefusedAs("TENSOR_DTYPE"));
  }
  for (const Dtype dtype : {Dtype::kF32, Dtype::kF16, Dtype::kBf16}) {
    EXPECT_THAT(Validate(TestImage().Module(kQ, 16, 16, 8, dtype)), IsOk());
  }
}

TEST(Validate, WeightsAreMatricesThatFitTogether) {
  const std::string a = std::string("base_model.model.") + kQ + ".lora_A.weight";
  const std::string b = std::string("base_model.model.") + kQ + ".lora_B.weight";
  const auto with = [&](std::vector<uint64_t> shape_a, std::vector<uint64_t> shape_b) {
    return Validate(TestImage().Tensor(a, Dtype::kF32, shape_a).Tensor(b, Dtype::kF32, shape_b));
  };
  EXPECT_THAT(with({8, 16}, {16, 8}), IsOk());
  for (const std::vector<uint64_t>& shape :
       std::vector<std::vector<uint64_t>>{{128}, {1, 8, 16}, {8, 16, 1}, {8, 0}, {0, 16}}) {
    EXPECT_THAT(with(shape, {16, 8}), RefusedSaying("TENSOR_SHAPE", "has two dimensions"));
  }
  EXPECT_THAT(with({8, 16}, {16, 4}), RefusedAs("TENSOR_SHAPE"));
  EXPECT_THAT(with({16, 8}, {8, 16}), RefusedAs("RANK_MISMATCH")) << "transposed";
}

TEST(Validate, TheRankIsTheConfigured) {
  EXPECT_THAT(Validate(TestImage().Module(kQ, 16, 16, 4)), RefusedAs("RANK_MISMATCH"));
  const Config patterned = ConfigWith({{"rank_pattern", {{"q_proj", 4}}}});
  EXPECT_THAT(Validate(TestImage().Module(kQ, 16, 16, 4), patterned), IsOk());
  EXPECT_THAT(Validate(TestImage().Module(kQ, 16, 16, 8), patterned), RefusedAs("RANK_MISMATCH"));
  EXPECT_THAT(Validate(TestImage().Module(kV, 16, 8, 8), patterned), IsOk());
  const Config regex = ConfigWith({{"rank_pattern", {{".*q_(proj|x)", 4}}}});
  EXPECT_THAT(Validate(TestImage().Module(kQ, 16, 16, 4), regex), IsOk());
  EXPECT_THAT(Validate(TestImage().Module(kQ, 16, 16, 8), regex), IsOk()) << "PEFT can tell";
  EXPECT_THAT(Validate(TestImage().Module(kQ, 16, 16, 5), regex), RefusedAs("RANK_MISMATCH"));
}

TEST(Validate, ModulesAreTheTargetedOnes) {
  const Config targeted = ConfigWith({{"target_modules", {"q_proj"}}});
  EXPECT_THAT(Validate(TestImage().Module(kQ, 16, 16), targeted), IsOk());
  EXPECT_THAT(Validate(TestImage().Module("q_proj", 16, 16), targeted), IsOk());
  EXPECT_THAT(Validate(TestImage().Module(kV, 16, 8), targeted), RefusedAs("MODULE_UNKNOWN"));
  EXPECT_THAT(Validate(TestImage().Module("x.not_q_proj", 16, 16), targeted),
              RefusedAs("MODULE_UNKNOWN"));
  EXPECT_THAT(
      Validate(TestImage().Module(kV, 16, 8), ConfigWith({{"target_modules", "all-linear"}})),
      IsOk());
}

TEST(Validate, TheTrainersRelativeNormIsRead) {
  ImageHeader header = TestImage().Module(kQ, 16, 16).Header();
  EXPECT_EQ(ValidateAdapter(header, ConfigWith())->traits.relative_norm_ppm, 0u);
  header.metadata = {{"format", "pt"}, {std::string(kRelativeNormKey), "123"}};
  EXPECT_EQ(ValidateAdapter(header, ConfigWith())->traits.relative_norm_ppm, 123u);
  header.metadata[1].second = "much";
  EXPECT_THAT(ValidateAdapter(header, ConfigWith()),
              RefusedSaying("IMAGE_MALFORMED", "no number of millionths"));
}

TEST(Validate, AKnownBaseHasTheModulesInTheirShapes) {
  EXPECT_THAT(Fits(TestImage().Module(kQ, 16, 16).Module(kV, 16, 8)), IsOk());
  for (const char* path : {"model.layers.0.self_attn.nosuch_proj",
                           "model.layers.2.self_attn.q_proj", "layers.0.self_attn.q_proj"}) {
    EXPECT_THAT(Fits(TestImage().Module(path, 16, 16)),
                RefusedSaying("BASE_MODEL_MISMATCH", "has no linear module"))
        << path;
  }
  EXPECT_THAT(Fits(TestImage().Module(kV, 16, 16)), RefusedAs("BASE_MODEL_MISMATCH"))
      << "kv heads are fewer";
  EXPECT_THAT(Fits(TestImage().Module(kQ, 8, 16)), RefusedAs("BASE_MODEL_MISMATCH"));
  EXPECT_THAT(Validate(TestImage().Module(kV, 999, 1)), IsOk()) << "no base, no judgement";
}

TEST(Validate, OfAnUnknownArchitectureTheSidesThatHiddenSizeSetsAreChecked) {
  const BaseModel base{.architecture = "newest", .hidden_size = 16, .layers = 2};
  EXPECT_THAT(Fits(TestImage().Module(kQ, 16, 999), base), IsOk());
  EXPECT_THAT(Fits(TestImage().Module(kQ, 12, 16), base),
              RefusedSaying("BASE_MODEL_MISMATCH", "it takes 16 and gives any"));
  EXPECT_THAT(Fits(TestImage().Module("model.layers.1.mlp.down_proj", 64, 12), base),
              RefusedAs("BASE_MODEL_MISMATCH"));
  EXPECT_THAT(Fits(TestImage().Module("model.layers.2.self_attn.q_proj", 16, 16), base),
              RefusedAs("BASE_MODEL_MISMATCH"))
      << "no such layer";
  EXPECT_THAT(Fits(TestImage().Module("model.layers.0.mixer.in_proj", 3, 5), base), IsOk());
  EXPECT_THAT(Fits(TestImage().Module("encoder.layers.9.attn.q_proj", 3, 5), base), IsOk());
}

TEST(Traits, SayWhatOthersMustKnow) {
  const TestImage image = TestImage().Module(kQ, 16, 16).Module(kV, 16, 8);
  const Traits plain = Validate(image)->traits;
  EXPECT_EQ(plain.rank_max, 8u);
  EXPECT_EQ(plain.modules, (std::vector<std::string>{"q_proj", "v_proj"}));
  EXPECT_FALSE(plain.rslora || plain.rank_or_alpha_pattern || plain.all_b_zero);
  EXPECT_TRUE(Validate(image, ConfigWith({{"use_rslora", true}}))->traits.rslora);
}

TEST(Traits, PatternsCountWhereTheyMatch) {
  const TestImage image = TestImage().Module(kQ, 16, 16);
  const auto patterned = [&](const json& fields) {
    return Validate(image, ConfigWith(fields))->traits.rank_or_alpha_pattern;
  };
  EXPECT_FALSE(patterned({{"alpha_pattern", {{"v_proj", 99}}}}));
  EXPECT_TRUE(patterned({{"r", 4}, {"rank_pattern", {{"q_proj", 8}}}}));
  EXPECT_FALSE(patterned({{"alpha_pattern", {{"q_proj", 16}}}}));
  EXPECT_TRUE(patterned({{"alpha_pattern", {{"q_proj", 99}}}}));
  EXPECT_TRUE(patterned({{"alpha_pattern", {{"(q|v)_proj", 99}}}})) << "what cannot be told counts";
}

TEST(Traits, GroupsThatSglangCannotFuseAreSeen) {
  const auto partial = [](std::vector<std::string> modules) {
    TestImage image;
    for (const auto& module : modules) image.Module("model.layers.0.self_attn." + module, 16, 16);
    return Validate(image, ConfigWith())->traits.partial_groups;
  };
  EXPECT_FALSE(partial({"q_proj", "v_proj"}));
  EXPECT_FALSE(partial({"q_proj", "k_proj", "v_proj", "o_proj"}));
  EXPECT_FALSE(partial({"o_proj", "gate_proj", "down_proj"}));
  EXPECT_FALSE(partial({"gate_proj", "up_proj"}));
  EXPECT_TRUE(partial({"q_proj"}));
  EXPECT_TRUE(partial({"v_proj"}));
  EXPECT_TRUE(partial({"k_proj"}));
  EXPECT_TRUE(partial({"up_proj"}));
}

}  // namespace
}  // namespace lorry::peft
