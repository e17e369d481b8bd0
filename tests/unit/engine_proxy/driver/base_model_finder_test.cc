// How a proxy learns which base model its engine serves.
#include "services/engine_proxy/driver/base_model_finder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace lorry::proxy {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

std::string ConfigOf(int hidden_size) {
  return R"({"model_type":"newest","hidden_size":)" + std::to_string(hidden_size) + "}";
}

class BaseModelFinderTest : public ::testing::Test {
 protected:
  BaseModelFinderTest() : root_(::testing::TempDir() + "/base-" + std::to_string(::getpid())) {
    fs::remove_all(root_);
    ::setenv("HF_HUB_CACHE", (root_ + "/hub").c_str(), 1);
  }
  ~BaseModelFinderTest() override {
    ::unsetenv("HF_HUB_CACHE");
    fs::remove_all(root_);
  }
  std::string Write(const std::string& path, const std::string& text) {
    fs::create_directories(fs::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
    return root_ + path;
  }
  FoundBaseModel Find(const engines::EngineFacts& facts, BaseModelFinder::Options options = {}) {
    return BaseModelFinder::Make(std::move(options))->Find(facts);
  }
  uint64_t HiddenSizeOf(const engines::EngineFacts& facts, BaseModelFinder::Options options = {}) {
    const FoundBaseModel found = Find(facts, std::move(options));
    return found.model.has_value() ? found.model->hidden_size : 0;
  }

  const std::string root_;
};

TEST_F(BaseModelFinderTest, ReadsTheConfigWhereTheEngineReadIt) {
  Write("/model/config.json", ConfigOf(64));
  EXPECT_EQ(HiddenSizeOf({.model_path = root_ + "/model"}), 64u);
}

TEST_F(BaseModelFinderTest, FindsAModelOfTheHubInThisHostsCache) {
  const std::string model = "/hub/models--org--name";
  Write(model + "/refs/main", "abc\n");
  Write(model + "/snapshots/abc/config.json", ConfigOf(64));
  Write(model + "/snapshots/def/config.json", ConfigOf(96));
  EXPECT_EQ(HiddenSizeOf({.model_path = "org/name"}), 64u);
  EXPECT_EQ(HiddenSizeOf({.model_path = "org/name", .model_revision = "def"}), 96u);
  EXPECT_EQ(HiddenSizeOf({.model_path = "org/other"}), 0u);
}

TEST_F(BaseModelFinderTest, WhatTheEngineTellsOfItsModelNeedsNoFile) {
  EXPECT_EQ(HiddenSizeOf({.model_path = "/nowhere", .model_config = ConfigOf(64)}), 64u);
  Write("/model/config.json", ConfigOf(96));
  EXPECT_EQ(HiddenSizeOf({.model_path = root_ + "/model", .model_config = "LlamaConfig {"}), 96u)
      << "what cannot be read is not told";
}

TEST_F(BaseModelFinderTest, AnOperatorsFileWins) {
  const std::string file = Write("/given.json", ConfigOf(64));
  Write("/folder/config.json", ConfigOf(96));
  const engines::EngineFacts facts{.model_config = ConfigOf(128)};
  EXPECT_EQ(HiddenSizeOf(facts, {.config = file}), 64u);
  EXPECT_EQ(HiddenSizeOf(facts, {.config = root_ + "/folder"}), 96u);
  EXPECT_FALSE(BaseModelFinder::Make({.config = root_ + "/none.json"}).ok());
  EXPECT_FALSE(BaseModelFinder::Make({.config = Write("/bad.json", "{}")}).ok());
}

TEST_F(BaseModelFinderTest, WhereNothingIsLearntTheRemedyIsNamed) {
  const FoundBaseModel found = Find({.model_path = "/models/m"});
  ASSERT_TRUE(found.problem.has_value());
  EXPECT_EQ(found.problem->reason, "BASE_MODEL_UNKNOWN");
  EXPECT_THAT(found.problem->remedy, HasSubstr("--base-model-config"));
  EXPECT_THAT(found.problem->remedy, HasSubstr("--base-model-unchecked"));
  EXPECT_THAT(found.problem->remedy, HasSubstr("/models/m"));
  EXPECT_FALSE(found.model.has_value());
  EXPECT_FALSE(found.unchecked);
}

TEST_F(BaseModelFinderTest, AnOperatorMayDoWithout) {
  const FoundBaseModel found = Find({}, {.unchecked = true});
  EXPECT_TRUE(found.unchecked);
  EXPECT_FALSE(found.problem.has_value());
  EXPECT_EQ(found.warning->reason, "BASE_MODEL_UNCHECKED");
}

TEST_F(BaseModelFinderTest, AnArchitectureThatIsNotKnownIsServedAndSaidToBe) {
  const FoundBaseModel found = Find({.model_config = ConfigOf(64)});
  EXPECT_TRUE(found.model.has_value());
  EXPECT_EQ(found.warning->reason, "BASE_MODEL_UNCHECKED");
}

}  // namespace
}  // namespace lorry::proxy
