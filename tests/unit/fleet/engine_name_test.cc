#include "lib/fleet/engine_name.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lorry::fleet {
namespace {

using ::testing::HasSubstr;

VersionKey Key(const std::string& adapter, uint64_t run, uint64_t number) {
  return {AdapterName(adapter), RunId(run), VersionNumber(number)};
}

// A name that changed between two builds of Lorry would be loaded beside itself on every engine.
TEST(EngineName, IsTheSameInEveryBuild) {
  EXPECT_EQ(MakeEngineName(Key("policy", 1, 12), Digest{"d1"}, Render::kPlain).value,
            "policy-v12-09893489ba65");
  EXPECT_EQ(MakeEngineName(Key("policy", 1, 12), Digest{"d1"}, Render::kRsloraFolded).value,
            "policy-v12-25571fddcb42");
}

// Answers announce the run: equal bytes under one number in two runs are two versions.
TEST(EngineName, BelongsToOneVersionAndOneContent) {
  const auto name = [](uint64_t run, std::string digest) {
    return MakeEngineName(Key("policy", run, 12), Digest{std::move(digest)}, Render::kPlain);
  };
  EXPECT_EQ(name(1, "d1"), name(1, "d1"));
  EXPECT_NE(name(1, "d1"), name(2, "d1"));
  EXPECT_NE(name(1, "d1"), name(1, "d2"));
}

TEST(EngineName, SaysItsVersion) {
  for (const std::string adapter : {"policy", "a-v", "my.policy-v2x", "v", "x-v7-abc"}) {
    const VersionKey key = Key(adapter, 0, 18446744073709551615u);
    EXPECT_EQ(KeyOfEngineName(MakeEngineName(key, Digest{"d"}, Render::kPlain)), key) << adapter;
  }
}

TEST(EngineName, OthersNamesSayNothing) {
  for (const std::string name :
       {"", "-", "base", "policy", "policy-v12", "policy-v12-0123456789a",
        "policy-v12-0123456789abc", "policy-v12-0123456789aB", "policy-12-0123456789ab",
        "policy-v-0123456789ab", "policy-v07-0123456789ab", "policy-v1x-0123456789ab",
        "policy-v+1-0123456789ab", "policy-v18446744073709551616-0123456789ab", "-v1-0123456789ab",
        "v1-0123456789ab", "a b-v1-0123456789ab", "0123456789ab"}) {
    EXPECT_EQ(KeyOfEngineName(EngineName(name)), std::nullopt) << name;
  }
}

TEST(Render, FoldsRsloraWhereTheEngineIgnoresIt) {
  const VersionTraits plain, rslora{.rslora = true};
  EXPECT_EQ(RenderFor(EngineKind::kSglang, rslora), Render::kRsloraFolded);
  EXPECT_EQ(RenderFor(EngineKind::kVllm, rslora), Render::kPlain);
  EXPECT_EQ(RenderFor(EngineKind::kSglang, plain), Render::kPlain);
}

TEST(WhyNotServable, NamesTheFlagOrTheFieldToChange) {
  const EngineLimits sglang{
      .kind = EngineKind::kSglang, .rank_limit = 16, .engine_modules = {"q_proj", "v_proj"}};
  const EngineLimits unknown;
  EXPECT_EQ(WhyNotServable(sglang, {.rank_max = 16, .modules = {"q_proj", "v_proj"}}), "");
  EXPECT_THAT(WhyNotServable(sglang, {.rank_max = 17}), HasSubstr("--max-lora-rank 16"));
  EXPECT_THAT(WhyNotServable(sglang, {.modules = {"down_proj", "q_proj"}}),
              HasSubstr("down_proj is not among the engine's --lora-target-modules"));
  EXPECT_THAT(WhyNotServable(sglang, {.partial_groups = true}), HasSubstr("train with q_proj"));
  EXPECT_THAT(WhyNotServable(unknown, {.rank_or_alpha_pattern = true}),
              HasSubstr("Lorry serves it nowhere; train with one r and one lora_alpha"));
  EXPECT_EQ(WhyNotServable(unknown, {.rank_max = 512, .partial_groups = true, .modules = {"x"}}),
            "");
}

TEST(WhyNotServable, AnEnginesFusedModuleIsThatOfItsParts) {
  const EngineLimits fused{.kind = EngineKind::kSglang,
                           .engine_modules = {"qkv_proj", "gate_up_proj"}};
  EXPECT_EQ(WhyNotServable(fused, {.modules = {"gate_proj", "k_proj", "q_proj", "up_proj"}}), "");
  EXPECT_THAT(WhyNotServable(fused, {.modules = {"o_proj", "q_proj"}}), HasSubstr("module o_proj"));
  const EngineLimits one{.kind = EngineKind::kVllm, .engine_modules = {"q_proj", "down_proj"}};
  EXPECT_EQ(WhyNotServable(one, {.modules = {"down_proj", "qkv_proj", "v_proj"}}), "");
  EXPECT_THAT(WhyNotServable(one, {.modules = {"up_proj"}}), HasSubstr("module up_proj"));
}

}  // namespace
}  // namespace lorry::fleet
