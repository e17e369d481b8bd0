#include "lib/peft/names.h"

#include <gtest/gtest.h>

#include "tests/unit/peft/test_image.h"

namespace lorry::peft {
namespace {

TEST(Names, FollowTheGoldenVectors) {
  for (const auto& golden : ReadGolden("names.json")) {
    SCOPED_TRACE(golden["why"].get<std::string>());
    std::vector<SourceTensor> sources;
    for (const auto& source : golden["sources"])
      sources.push_back({source["name"], source["shape"]});
    std::optional<BaseModel> base;
    if (golden.contains("base")) {
      const auto parsed = ParseBaseModel(golden["base"].dump());
      ASSERT_THAT(parsed, IsOk());
      base = *parsed;
    }
    const auto plan = PlanNames(sources, base ? &*base : nullptr, golden.value("adapter", ""));
    if (golden.contains("reason")) {
      EXPECT_THAT(plan, RefusedAs(golden["reason"].get<std::string>()));
      continue;
    }
    ASSERT_THAT(plan, IsOk());
    std::vector<PlannedTensor> expected;
    for (const auto& tensor : golden["tensors"]) {
      expected.push_back({tensor["name"], tensor["source"], tensor["rows"][0], tensor["rows"][1]});
      if (!tensor.contains("columns")) continue;
      expected.back().column = tensor["columns"][0];
      expected.back().column_step = tensor["columns"][1];
    }
    EXPECT_EQ(plan->tensors, expected);
    EXPECT_EQ(plan->target_modules, golden["target_modules"].get<std::vector<std::string>>());
  }
}

TEST(Names, StoredNamesMustBeCanonical) {
  const std::string name = "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight";
  const auto read = ReadCanonicalName(name);
  ASSERT_THAT(read, IsOk());
  EXPECT_EQ(read->path, "model.layers.0.self_attn.q_proj");
  EXPECT_TRUE(read->is_b);
  EXPECT_EQ(CanonicalName(*read), name);
  EXPECT_THAT(ReadCanonicalName("base_model.model.model.layers.0.q_proj.lora_B.default.weight"),
              RefusedAs("TENSOR_UNKNOWN"));
  EXPECT_THAT(ReadCanonicalName("model.layers.0.self_attn.q_proj.lora_B.weight"),
              RefusedAs("TENSOR_UNKNOWN"));
  EXPECT_THAT(ReadCanonicalName("module." + name), RefusedAs("TENSOR_UNKNOWN"));
}

TEST(Names, OnlyPeftsOwnPrefixIsStripped) {
  const auto path = [](std::string_view name) {
    return ReadName(absl::StrCat(ToAbsl(name), ".lora_A.weight"))->path;
  };
  EXPECT_EQ(path("base_model.model.q_proj"), "q_proj");
  EXPECT_EQ(path("base_model.model.module.q_proj"), "q_proj");
  EXPECT_EQ(path("module.base_model.model.q_proj"), "q_proj");
  EXPECT_EQ(path("other.model.q_proj"), "other.model.q_proj");
  EXPECT_EQ(path("base_model.other.q_proj"), "base_model.other.q_proj");
  EXPECT_EQ(ModuleOf("lm_head"), "lm_head");
}

TEST(Names, EmbeddingsAreRefusedOfEitherSide) {
  for (const char* side : {"lora_embedding_A", "lora_embedding_B"}) {
    EXPECT_THAT(ReadName(absl::StrCat("base_model.model.tokens.", side)),
                RefusedAs("EMBEDDING_UNSUPPORTED"));
  }
}

TEST(Names, OneAdapterIsPublished) {
  std::vector<SourceTensor> sources;
  for (const char* adapter : {"a", "b", "c", "d", "e", "f"}) {
    sources.push_back({absl::StrCat("q_proj.lora_A.", adapter, ".weight"), {8, 16}});
  }
  EXPECT_THAT(
      PlanNames(sources, nullptr),
      RefusedSaying(
          "TENSOR_AMBIGUOUS",
          "of 6 adapters (\"a\", \"b\", \"c\", \"d\", \"e\"); leave those of the others out"));
  const auto plan = PlanNames(sources, nullptr, "c");
  ASSERT_THAT(plan, IsOk());
  ASSERT_EQ(plan->tensors.size(), 1u);
  EXPECT_EQ(plan->tensors[0].source, 2u);
  // Names that say no adapter are those of the one that is published.
  EXPECT_EQ(PlanNames(std::vector<SourceTensor>{{"q_proj.lora_A.weight", {8, 16}}}, nullptr, "c")
                ->tensors.size(),
            1u);
  EXPECT_EQ(PlanNames(std::vector<SourceTensor>{{"q_proj.lora_A.weight", {}}}, nullptr)
                ->tensors[0]
                .row_end,
            0u);
}

TEST(Names, OnlyFusedModulesAreSplit) {
  const BaseModel base{.hidden_size = 16,
                       .layers = 1,
                       .complete = true,
                       .intermediate_size = 32,
                       .heads = 4,
                       .kv_heads = 2,
                       .head_dim = 4,
                       .vocab_size = 64};
  const auto plan = [&](std::string_view module, std::vector<uint64_t> shape) {
    return PlanNames(
        std::vector<SourceTensor>{{absl::StrCat(ToAbsl(module), ".lora_A.weight"), shape}}, &base);
  };
  EXPECT_EQ(plan("o_proj", {8, 16})->tensors.size(), 1u);
  EXPECT_EQ(plan("gate_up_proj", {8, 16})->tensors.size(), 2u);
  EXPECT_THAT(plan("gate_up_proj", {8}), RefusedAs("TENSOR_SHAPE"));
}

TEST(Names, HostileNamesAreShownEscapedAndCut) {
  const auto status = ReadName(std::string(5000, '\x01')).status();
  EXPECT_LT(status.message().size(), 1200u);
  EXPECT_EQ(status.message().find('\x01'), absl::string_view::npos);
}

}  // namespace
}  // namespace lorry::peft
