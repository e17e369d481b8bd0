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

TEST(Names, HostileNamesAreShownEscapedAndCut) {
  const auto status = ReadName(std::string(5000, '\x01')).status();
  EXPECT_LT(status.message().size(), 1200u);
  EXPECT_EQ(status.message().find('\x01'), absl::string_view::npos);
}

}  // namespace
}  // namespace lorry::peft
