#include "lib/peft/base_model.h"

#include <gtest/gtest.h>

#include "tests/unit/peft/test_image.h"

namespace lorry::peft {
namespace {

using nlohmann::json;

constexpr char kQwen3[] =
    R"({"architectures":["Qwen3ForCausalLM"],"model_type":"qwen3","hidden_size":1024,
  "intermediate_size":3072,"num_hidden_layers":28,"num_attention_heads":16,"num_key_value_heads":8,
  "head_dim":128,"vocab_size":151936,"rope_scaling":null})";

BaseModel Known(std::string_view json) {
  const auto model = ParseBaseModel(json);
  EXPECT_THAT(model, IsOk());
  return model.value_or(BaseModel{});
}

TEST(BaseModel, KnowsTheShapesOfADenseDecoder) {
  const BaseModel model = Known(kQwen3);
  const auto shape = [&](std::string_view path) {
    return ShapeOf(model, path).value_or(ModuleShape{});
  };
  EXPECT_EQ(shape("model.layers.0.self_attn.q_proj"), (ModuleShape{1024, 2048}));
  EXPECT_EQ(shape("model.layers.27.self_attn.k_proj"), (ModuleShape{1024, 1024}));
  EXPECT_EQ(shape("model.layers.0.self_attn.v_proj"), (ModuleShape{1024, 1024}));
  EXPECT_EQ(shape("model.layers.0.self_attn.o_proj"), (ModuleShape{2048, 1024}));
  EXPECT_EQ(shape("model.layers.0.mlp.gate_proj"), (ModuleShape{1024, 3072}));
  EXPECT_EQ(shape("model.layers.0.mlp.up_proj"), (ModuleShape{1024, 3072}));
  EXPECT_EQ(shape("model.layers.0.mlp.down_proj"), (ModuleShape{3072, 1024}));
  EXPECT_EQ(shape("lm_head"), (ModuleShape{1024, 151936}));
}

TEST(BaseModel, HasNoOtherModules) {
  const BaseModel model = Known(kQwen3);
  for (const std::string_view path :
       {"", "model.layers.28.mlp.up_proj", "model.layers.00.mlp.up_proj",
        "model.layers.-1.mlp.up_proj", "model.layers..mlp.up_proj",
        "model.layers.99999999999999999999.mlp.up_proj", "layers.0.mlp.up_proj", "model.layers.0",
        "model.layers.0.", "model.layers.0xmlp.up_proj", "0.mlp.up_proj",
        "model.layers.mlp.up_proj", "model.layers.0.up_proj", "model.layers.0.mlp.gate",
        "model.layers.0.self_attn.nosuch_proj", "model.embed_tokens",
        "model.layers.0.mlp.up_proj.more"}) {
    EXPECT_FALSE(ShapeOf(model, path).has_value()) << path;
  }
}

TEST(BaseModel, FillsInWhatOldFilesLeaveOut) {
  const BaseModel model = Known(R"({"model_type":"llama","hidden_size":128,"intermediate_size":256,
    "num_hidden_layers":2,"num_attention_heads":4,"vocab_size":512,"head_dim":null})");
  EXPECT_EQ(model.kv_heads, 4u);
  EXPECT_EQ(model.head_dim, 32u);
}

TEST(BaseModel, KnowsMixturesOfExperts) {
  const BaseModel mixtral = Known(R"({"model_type":"mixtral","hidden_size":64,
    "intermediate_size":96,"num_hidden_layers":1,"num_attention_heads":4,"num_key_value_heads":2,
    "vocab_size":512,"num_local_experts":8})");
  EXPECT_EQ(ShapeOf(mixtral, "model.layers.0.self_attn.v_proj"), (ModuleShape{64, 32}));
  EXPECT_EQ(ShapeOf(mixtral, "model.layers.0.block_sparse_moe.experts.7.w1"),
            (ModuleShape{64, 96}));
  EXPECT_EQ(ShapeOf(mixtral, "model.layers.0.block_sparse_moe.experts.0.w2"),
            (ModuleShape{96, 64}));
  EXPECT_EQ(ShapeOf(mixtral, "model.layers.0.block_sparse_moe.gate"), (ModuleShape{64, 8}));
  EXPECT_EQ(ShapeOf(mixtral, "model.layers.0.block_sparse_moe.experts.0.w3"),
            (ModuleShape{64, 96}));
  EXPECT_EQ(ToString(mixtral), "mixtral, hidden size 64, 1 layers, 8 experts");
  for (const char* path :
       {"model.layers.0.block_sparse_moe.experts.8.w1", "model.layers.0.mlp.up_proj",
        "model.layers.0.block_sparse_moe.experts.0.up_proj",
        "model.layers.0.block_sparse_moe.up_proj"}) {
    EXPECT_FALSE(ShapeOf(mixtral, path).has_value()) << path;
  }
  const BaseModel qwen = Known(R"({"model_type":"qwen2_moe","hidden_size":64,
    "intermediate_size":96,"moe_intermediate_size":24,"shared_expert_intermediate_size":48,
    "num_hidden_layers":1,"num_attention_heads":4,"num_key_value_heads":4,"vocab_size":512,
    "num_experts":16})");
  EXPECT_EQ(ShapeOf(qwen, "model.layers.0.mlp.experts.15.gate_proj"), (ModuleShape{64, 24}));
  EXPECT_EQ(ShapeOf(qwen, "model.layers.0.mlp.shared_expert.down_proj"), (ModuleShape{48, 64}));
  EXPECT_EQ(ShapeOf(qwen, "model.layers.0.mlp.shared_expert_gate"), (ModuleShape{64, 1}));
  EXPECT_EQ(ShapeOf(qwen, "model.layers.0.mlp.up_proj"), (ModuleShape{64, 96})) << "a plain layer";
  EXPECT_FALSE(ShapeOf(qwen, "model.layers.0.mlp.experts.16.gate_proj").has_value());
}

TEST(BaseModel, OfAMixtureOnlyItsOwnExpertsAreKnown) {
  const BaseModel qwen = Known(R"({"model_type":"qwen3_moe","hidden_size":64,
    "intermediate_size":96,"moe_intermediate_size":24,"num_hidden_layers":1,"head_dim":16,
    "num_attention_heads":4,"num_key_value_heads":4,"vocab_size":512,"num_experts":16})");
  EXPECT_EQ(ShapeOf(qwen, "model.layers.0.mlp.experts.3.up_proj"), (ModuleShape{64, 24}));
  for (const char* path : {"shared_expert_gate", "3.gate_proj", "experts.gate_proj"}) {
    EXPECT_FALSE(ShapeOf(qwen, absl::StrCat("model.layers.0.mlp.", path)).has_value()) << path;
  }
}

TEST(BaseModel, AHeadMayBeOfAnotherSizeThanItsShare) {
  const BaseModel gemma = Known(R"({"model_type":"gemma2","hidden_size":64,"intermediate_size":96,
    "num_hidden_layers":1,"num_attention_heads":4,"num_key_value_heads":2,"head_dim":32,
    "vocab_size":512})");
  EXPECT_EQ(ShapeOf(gemma, "model.layers.0.self_attn.q_proj"), (ModuleShape{64, 128}));
  EXPECT_EQ(ShapeOf(gemma, "model.layers.0.self_attn.o_proj"), (ModuleShape{128, 64}));
}

TEST(BaseModel, DerivesWhatItCanOfArchitecturesItDoesNotKnow) {
  const BaseModel model = Known(R"({"model_type":"newest","hidden_size":64})");
  EXPECT_FALSE(model.complete);
  EXPECT_EQ(ToString(model), "newest, hidden size 64, only partly known");
  EXPECT_EQ(ToString(Known(R"({"hidden_size":64})")), "unnamed, hidden size 64, only partly known");
  EXPECT_EQ(ShapeOf(model, "model.layers.0.self_attn.q_proj"), (ModuleShape{64, 0}));
  EXPECT_EQ(ShapeOf(model, "model.layers.0.self_attn.o_proj"), (ModuleShape{0, 64}));
  EXPECT_EQ(ShapeOf(model, "model.layers.0.mixer.in_proj"), (ModuleShape{}));
  const BaseModel seeing = Known(R"({"model_type":"gemma3","vision_config":{"hidden_size":9},
    "text_config":{"model_type":"gemma3_text","hidden_size":64,"num_hidden_layers":2}})");
  EXPECT_FALSE(seeing.complete) << "its paths begin otherwise";
  EXPECT_EQ(ShapeOf(seeing, "model.language_model.layers.1.mlp.up_proj"), (ModuleShape{64, 0}));
  EXPECT_EQ(ShapeOf(seeing, "model.language_model.layers.2.mlp.up_proj"), std::nullopt);
  EXPECT_EQ(ShapeOf(seeing, "model.language_model.layers.x.up_proj"), (ModuleShape{64, 0}));
  EXPECT_EQ(ShapeOf(seeing, "abcdef9.q_proj"), (ModuleShape{64, 0})) << "no layer is named";
  EXPECT_EQ(ShapeOf(seeing, "model.vision_tower.layers.5.q_proj"), (ModuleShape{}));
}

TEST(BaseModel, ItsOwnSizesCountBeforeThoseOfAPart) {
  const BaseModel model = Known(R"({"model_type":"llama","hidden_size":128,"intermediate_size":256,
    "num_hidden_layers":2,"num_attention_heads":4,"vocab_size":512,"head_dim":64,
    "text_config":{"hidden_size":9}})");
  EXPECT_TRUE(model.complete);
  EXPECT_EQ(model.hidden_size, 128u);
  EXPECT_EQ(model.head_dim, 64u) << "and not its share of the hidden size";
}

TEST(BaseModel, ASizeIsAtMostWhatProductsTake) {
  EXPECT_THAT(ParseBaseModel(R"({"hidden_size":2147483648})"), IsOk());
  EXPECT_THAT(ParseBaseModel(R"({"hidden_size":2147483649})"), RefusedAs("CONFIG_MALFORMED"));
  EXPECT_THAT(ParseBaseModel(R"({"hidden_size":8,"num_hidden_layers":0})"),
              RefusedAs("CONFIG_MALFORMED"));
}

TEST(BaseModel, WhatOnlyAFileCanSayIsNotGuessed) {
  for (const char* type : {"qwen3", "gemma2"}) {
    json fields = {{"model_type", type},      {"hidden_size", 64}, {"intermediate_size", 96},
                   {"num_hidden_layers", 1},  {"vocab_size", 512}, {"num_attention_heads", 4},
                   {"num_key_value_heads", 2}};
    EXPECT_THAT(ParseBaseModel(fields.dump()), RefusedSaying("CONFIG_MALFORMED", "head_dim"));
    fields["head_dim"] = 16;
    EXPECT_THAT(ParseBaseModel(fields.dump()), IsOk());
    fields.erase("num_key_value_heads");
    EXPECT_THAT(ParseBaseModel(fields.dump()),
                RefusedSaying("CONFIG_MALFORMED", "num_key_value_heads"));
  }
}

TEST(BaseModel, RefusesOneWithoutItsSizes) {
  EXPECT_THAT(ParseBaseModel("{}"), RefusedAs("CONFIG_MALFORMED"));
  EXPECT_THAT(ParseBaseModel(R"({"model_type":7})"), RefusedAs("CONFIG_MALFORMED"));
  EXPECT_THAT(ParseBaseModel(R"({"model_type":"qwen3_moe","hidden_size":8})"),
              RefusedAs("CONFIG_MALFORMED"));
  EXPECT_THAT(ParseBaseModel(R"({"model_type":"llama"})"), RefusedAs("CONFIG_MALFORMED"));
  EXPECT_THAT(ParseBaseModel(R"({"model_type":"qwen3","hidden_size":8,"intermediate_size":8,
    "num_hidden_layers":0,"num_attention_heads":4,"vocab_size":512})"),
              RefusedAs("CONFIG_MALFORMED"));
  EXPECT_THAT(ParseBaseModel(R"({"model_type":"mistral","hidden_size":"8"})"),
              RefusedAs("CONFIG_MALFORMED"));
  EXPECT_THAT(ParseBaseModel("not json"), RefusedAs("CONFIG_MALFORMED"));
}

}  // namespace
}  // namespace lorry::peft
