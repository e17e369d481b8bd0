// What a PEFT directory becomes: canonical names, split projections, the config that belongs to
// them, and what is refused.
#include "clients/cpp/peft_directory.h"

#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "lib/base/check.h"
#include "lib/base/error.h"
#include "tests/unit/clients/adapter_dir.h"

namespace lorry::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kQ[] = "base_model.model.model.layers.0.self_attn.q_proj";

std::vector<std::string> NamesOf(const AdapterImage& image) {
  std::vector<std::string> names;
  for (const peft::Tensor& tensor : image.header().tensors) names.push_back(tensor.name);
  std::ranges::sort(names);
  return names;
}

// The first value of a tensor of the image.
float FirstOf(const AdapterImage& image, const std::string& name) {
  for (const peft::Tensor& tensor : image.header().tensors) {
    float value = 0;
    if (tensor.name == name) {
      std::memcpy(&value, image.bytes().data() + tensor.begin, sizeof(value));
      return value;
    }
  }
  return -1;
}

TEST(PeftDirectory, ACanonicalOneStaysByteForByte) {
  AdapterDir dir;
  dir.With(std::string(kQ) + ".lora_A.weight", 2, 8, 10);
  dir.With(std::string(kQ) + ".lora_B.weight", 8, 2, 50);
  const auto image = ReadPeftDirectory(dir.Write());
  ASSERT_TRUE(image.ok()) << image.status();
  EXPECT_EQ(FirstOf(*image, std::string(kQ) + ".lora_A.weight"), 10);
  EXPECT_EQ(FirstOf(*image, std::string(kQ) + ".lora_B.weight"), 50);
  EXPECT_THAT(image->config_json(), HasSubstr(R"("target_modules": ["q_proj"])"));
  EXPECT_TRUE(image->ComputeDigest()->starts_with("sha256-xxh3:"));
}

// What another user keeps to itself is there, and says so.
TEST(PeftDirectory, WhatCannotBeReadIsNotMissing) {
  if (geteuid() != 0) GTEST_SKIP() << "only root becomes another user";
  constexpr uid_t kNobody = 65534;
  AdapterDir dir;
  dir.With(std::string(kQ) + ".lora_A.weight", 2, 8);
  dir.With(std::string(kQ) + ".lora_B.weight", 8, 2);
  dir.Write();
  const auto refusal = [&] {
    LORRY_CHECK(seteuid(kNobody) == 0);
    const absl::Status read = ReadPeftDirectory(dir.path()).status();
    LORRY_CHECK(seteuid(0) == 0);
    EXPECT_EQ(ReasonOf(read), "DIRECTORY_INVALID") << read;
    return std::string(read.message());
  };
  const std::string config = dir.path() + "/adapter_config.json";
  const std::string image = dir.path() + "/adapter_model.safetensors";
  EXPECT_EQ(refusal(), config + " cannot be read: Permission denied");
  ASSERT_EQ(chmod(dir.path().c_str(), 0755), 0);
  ASSERT_EQ(chmod(image.c_str(), 0600), 0);
  EXPECT_EQ(refusal(), image + " cannot be read: Permission denied");
  ASSERT_EQ(chmod(config.c_str(), 0600), 0);
  EXPECT_EQ(refusal(), config + " cannot be read: Permission denied");
  EXPECT_TRUE(IsPeftDirectory(dir.path()));
}

TEST(PeftDirectory, WrappersAndTheAdaptersNameAreStripped) {
  AdapterDir dir;
  dir.With("module._orig_mod." + std::string(kQ) + ".lora_A.default.weight", 2, 8);
  dir.With("module._orig_mod." + std::string(kQ) + ".lora_B.default.weight", 8, 2);
  const auto image = ReadPeftDirectory(dir.Write());
  ASSERT_TRUE(image.ok()) << image.status();
  EXPECT_THAT(NamesOf(*image),
              ElementsAre(std::string(kQ) + ".lora_A.weight", std::string(kQ) + ".lora_B.weight"));
}

TEST(PeftDirectory, AnExpressionBecomesTheModulesThatAreThere) {
  AdapterDir dir;
  dir.Config(R"({"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": "all-linear"})");
  dir.With(std::string(kQ) + ".lora_A.weight", 2, 8);
  dir.With(std::string(kQ) + ".lora_B.weight", 8, 2);
  const auto image = ReadPeftDirectory(dir.Write());
  ASSERT_TRUE(image.ok()) << image.status();
  const auto config = nlohmann::json::parse(image->config_json());
  EXPECT_EQ(config["target_modules"], nlohmann::json({"q_proj"}));
  EXPECT_EQ(config["lora_alpha"], 4);
}

TEST(PeftDirectory, AFusedProjectionIsSplitByTheBaseModel) {
  AdapterDir dir;
  dir.File("base.json", R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"],
      "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1,
      "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4, "vocab_size": 32})");
  dir.Config(R"({"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["qkv_proj"]})");
  const std::string fused = "base_model.model.model.layers.0.self_attn.qkv_proj";
  dir.With(fused + ".lora_A.weight", 2, 8, 7);
  dir.With(fused + ".lora_B.weight", 16, 2, 100);
  const ReadOptions options{.base_model_config = dir.path() + "/base.json"};
  const auto image = ReadPeftDirectory(dir.Write(), options);
  ASSERT_TRUE(image.ok()) << image.status();
  EXPECT_EQ(image->header().tensors.size(), 6u);
  const std::string layer = "base_model.model.model.layers.0.self_attn.";
  EXPECT_EQ(FirstOf(*image, layer + "k_proj.lora_A.weight"), 7);
  // q has 8 rows of 2 before k, k 4 before v.
  EXPECT_EQ(FirstOf(*image, layer + "q_proj.lora_B.weight"), 100);
  EXPECT_EQ(FirstOf(*image, layer + "k_proj.lora_B.weight"), 116);
  EXPECT_EQ(FirstOf(*image, layer + "v_proj.lora_B.weight"), 124);
  EXPECT_EQ(nlohmann::json::parse(image->config_json())["target_modules"],
            nlohmann::json({"k_proj", "q_proj", "v_proj"}));

  dir.Config(R"({"peft_type": "LORA", "r": 2, "lora_alpha": 4, "alpha_pattern": {"qkv_proj": 8},
      "target_modules": ["qkv_proj"]})");
  const auto patterned = ReadPeftDirectory(dir.Write(), options);
  EXPECT_EQ(ReasonOf(patterned.status()), "CONFIG_UNSUPPORTED");
  EXPECT_THAT(std::string(patterned.status().message()), HasSubstr("one lora_alpha"));
}

TEST(PeftDirectory, StackedExpertsAreTakenApartByTheBaseModel) {
  AdapterDir dir;
  dir.File("base.json", R"({"model_type": "qwen3_moe", "hidden_size": 8, "intermediate_size": 16,
      "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4,
      "vocab_size": 32, "num_local_experts": 3, "moe_intermediate_size": 4})");
  dir.Config(R"({"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": null,
      "target_parameters": ["mlp.experts.down_proj"]})");
  const std::string stacked = "base_model.model.model.layers.0.mlp.experts";
  dir.With(stacked + ".lora_A.weight", 6, 4, 100);  // three experts of rank 2
  dir.With(stacked + ".lora_B.weight", 8, 6, 200);
  const std::string written = dir.Write();
  EXPECT_EQ(ReasonOf(ReadPeftDirectory(written).status()), "CONFIG_UNSUPPORTED");

  const ReadOptions options{.base_model_config = dir.path() + "/base.json"};
  const auto image = ReadPeftDirectory(written, options);
  ASSERT_TRUE(image.ok()) << image.status();
  EXPECT_EQ(image->header().tensors.size(), 6u);
  EXPECT_EQ(FirstOf(*image, stacked + ".2.down_proj.lora_A.weight"), 100 + 2 * 2 * 4);
  // Of expert 2 the columns 2 and 5 of each row of 6.
  for (const peft::Tensor& tensor : image->header().tensors) {
    if (tensor.name != stacked + ".2.down_proj.lora_B.weight") continue;
    EXPECT_THAT(tensor.shape, ElementsAre(8, 2));
    float values[4] = {};
    std::memcpy(values, image->bytes().data() + tensor.begin, sizeof(values));
    EXPECT_THAT(values, ElementsAre(202, 205, 208, 211));
  }
  const auto config = nlohmann::json::parse(image->config_json());
  EXPECT_EQ(config["target_modules"], nlohmann::json({"down_proj"}));
  EXPECT_FALSE(config.contains("target_parameters"));

  dir.Config(R"({"peft_type": "LORA", "r": 2, "lora_alpha": 4, "alpha_pattern": {"experts": 8},
      "target_parameters": ["mlp.experts.down_proj"]})");
  const auto patterned = ReadPeftDirectory(dir.Write(), options);
  EXPECT_EQ(ReasonOf(patterned.status()), "CONFIG_UNSUPPORTED");
  EXPECT_THAT(std::string(patterned.status().message()), HasSubstr("one lora_alpha"));
}

TEST(PeftDirectory, WhatIsNoAdapterIsRefusedWithARemedy) {
  AdapterDir empty;
  const auto nothing = ReadPeftDirectory(empty.path());
  EXPECT_EQ(ReasonOf(nothing.status()), "DIRECTORY_INVALID");
  EXPECT_THAT(std::string(nothing.status().message()), HasSubstr("save_pretrained"));

  AdapterDir pickled;
  pickled.File("adapter_config.json", "{}").File("adapter_model.bin", "PK");
  const auto bin = ReadPeftDirectory(pickled.path());
  EXPECT_THAT(std::string(bin.status().message()), HasSubstr("safe_serialization=True"));

  EXPECT_EQ(ReasonOf(ReadPeftDirectory("/nowhere/at/all").status()), "DIRECTORY_INVALID");
  EXPECT_FALSE(IsPeftDirectory(empty.path()));
}

// What was read of it may be of two steps.
TEST(PeftDirectory, WhatIsWrittenWhileItIsReadIsRefused) {
  AdapterDir dir;
  dir.With(std::string(kQ) + ".lora_A.weight", 2, 8).With(std::string(kQ) + ".lora_B.weight", 8, 2);
  const std::filesystem::path written(dir.Write());
  for (const char* name : {kConfigFile, kImageFile}) {
    const std::filesystem::path file = written / name, other = written / "other";
    const auto read_while = [&](const std::function<void()>& change) {
      dir.Write();
      EXPECT_TRUE(ReadPeftDirectory(written.string(), {}, [] {}).ok());
      return ReasonOf(ReadPeftDirectory(written.string(), {}, change).status());
    };
    // A page that is cut off a mapped file would end the process where it is touched.
    EXPECT_EQ(read_while([&] { std::filesystem::resize_file(file, 0); }), "DIRECTORY_CHANGED");
    EXPECT_EQ(read_while([&] {
                std::filesystem::copy_file(file, other);
                std::filesystem::rename(other, file);
              }),
              "DIRECTORY_CHANGED");
    EXPECT_EQ(read_while([&] { std::filesystem::remove(file); }), "DIRECTORY_CHANGED");
  }
}

TEST(PeftDirectory, WhatTheStoreWouldRefuseIsRefusedHere) {
  AdapterDir unpaired;
  unpaired.With(std::string(kQ) + ".lora_A.weight", 2, 8);
  EXPECT_EQ(ReasonOf(ReadPeftDirectory(unpaired.Write()).status()), "TENSOR_UNPAIRED");

  AdapterDir dora;
  dora.Config(R"({"peft_type": "LORA", "r": 2, "use_dora": true, "target_modules": ["q_proj"]})");
  dora.With(std::string(kQ) + ".lora_A.weight", 2, 8);
  EXPECT_EQ(ReasonOf(ReadPeftDirectory(dora.Write()).status()), "DORA_UNSUPPORTED");

  AdapterDir cut;
  cut.With(std::string(kQ) + ".lora_A.weight", 2, 8).Write();
  cut.File("adapter_model.safetensors", "\x10");
  EXPECT_EQ(ReasonOf(ReadPeftDirectory(cut.path()).status()), "IMAGE_TRUNCATED");
}

}  // namespace
}  // namespace lorry::client
