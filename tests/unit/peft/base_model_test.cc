#include "lib/peft/base_model.h"

#include <gtest/gtest.h>

#include "tests/unit/peft/test_image.h"

namespace lorry::peft {
namespace {

constexpr char kQwen3[] =
    R"({"architectures":["Qwen3ForCausalLM"],"model_type":"qwen3","hidden_size":1024,
  "intermediate_size":3072,"num_hidden_layers":28,"num_attention_heads":16,"num_key_value_heads":8,
  "head_dim":128,"vocab_size":151936,"rope_scaling":null})";

BaseModel Known(std::string_view json) {
  const auto model = ParseBaseModel(json);
  EXPECT_THAT(model, IsOk());
  EXPECT_TRUE(model->has_value());
  return model->value();
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
        "model.layers.0.", "model.layers.0.self_attn.nosuch_proj", "model.embed_tokens",
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

TEST(BaseModel, SaysNothingOfArchitecturesItDoesNotKnow) {
  for (const std::string_view json :
       {R"({"model_type":"qwen3_moe","hidden_size":8})", R"({"model_type":7})", "{}"}) {
    const auto model = ParseBaseModel(json);
    ASSERT_THAT(model, IsOk()) << json;
    EXPECT_FALSE(model->has_value()) << json;
  }
}

TEST(BaseModel, RefusesAKnownOneWithoutItsSizes) {
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
