// Tensors out of a call become a directory for the engine; the same as by a directory of a framework.
#include "services/engine_proxy/bindings/binding_reader.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <future>
#include <map>
#include <memory>
#include <variant>

#include "services/engine_proxy/machine/binding_name.h"
#include "tests/testing/temp_dir.h"
#include "tests/unit/engine_proxy/bindings/torch_pickles.h"

namespace lorry::proxy {
namespace {

class BindingReaderTest : public ::testing::Test {
 protected:
  BindingReaderTest() {
    const nlohmann::json& row = Accepted("protocol_4");
    const nlohmann::json config = {
        {"peft_type", "LORA"}, {"r", 2}, {"lora_alpha", 4}, {"target_modules", {"q_proj"}}};
    bodies_[7] = nlohmann::json{
        {"lora_name", "a"},
        {"serialized_tensors", row["pickle"]},
        {"config_dict",
         config}}.dump();
    std::filesystem::create_directories(root_ / "a");
    std::ofstream(root_ / "a/adapter_config.json") << config;
    std::ofstream(root_ / "a/adapter_model.safetensors") << Decoded(row["image"]);
    shelf_ = ImageShelf::Open(images_ / "shelf", JournalId("j1"), {}).value();
    reader_ = std::make_unique<BindingReader>(
        BindingRoots::Open({root_.path()}).value(), uint64_t{1} << 20, /*one_node=*/true, *shelf_,
        [this](uint64_t ticket) -> std::optional<std::string> {
          if (!bodies_.contains(ticket)) return std::nullopt;
          return std::exchange(bodies_[ticket], "");
        },
        [this](Event event) { heard_.set_value(std::move(event)); });
  }
  Event Heard() {
    Event event = heard_.get_future().get();
    heard_ = {};
    return event;
  }
  BindingRead Reads(const std::string& path, uint64_t ticket) {
    reader_->Read(
        {.op = 1, .path = path, .ticket = ticket, .kind = fleet::EngineKind::kSglang, .base = {}});
    return std::get<BindingRead>(Heard());
  }

  TempDir root_, images_;
  std::map<uint64_t, std::string> bodies_;
  std::promise<Event> heard_;
  std::unique_ptr<ImageShelf> shelf_;
  std::unique_ptr<BindingReader> reader_;
};

TEST_F(BindingReaderTest, TensorsHaveTheNameOfADirectoryWithThem) {
  const BindingRead tensors = Reads(kTensorsPath, 7);
  ASSERT_EQ(tensors.outcome, Outcome::kOk) << tensors.detail;
  EXPECT_FALSE(tensors.path.empty());
  EXPECT_TRUE(shelf_->Proves(tensors.name, tensors.path, tensors.digest, tensors.render));
  const BindingRead directory = Reads(root_ / "a", 0);
  ASSERT_EQ(directory.outcome, Outcome::kOk) << directory.detail;
  EXPECT_EQ(directory.digest, tensors.digest);
  EXPECT_EQ(directory.name, tensors.name);
  EXPECT_EQ(directory.path, tensors.path) << "it is there already";
  std::ofstream(tensors.path + "/adapter_config.json") << "{}";
  EXPECT_EQ(Reads(root_ / "a", 0).path, "") << "and is no more what it was";
}

// While it lives, files have no room for more than a byte.
class FullDisk {
 public:
  FullDisk() : signal_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit full{.rlim_cur = 1, .rlim_max = before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &full);
  }
  ~FullDisk() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, signal_);
  }

 private:
  void (*const signal_)(int);
  rlimit before_{};
};

TEST_F(BindingReaderTest, WhatOnlyMayBeWantedMakesRoomForIt) {
  std::optional<FullDisk> full(std::in_place);
  EXPECT_EQ(Reads(root_ / "a", 0).reason, "DISK_FULL");
  shelf_->OnFull([&full] { full.reset(); });
  const BindingRead read = Reads(root_ / "a", 0);
  EXPECT_EQ(read.outcome, Outcome::kOk) << read.detail;
}

TEST_F(BindingReaderTest, WhoeverHasLeftTakesHisTensorsAlong) {
  const BindingRead read = Reads(kTensorsPath, 8);
  EXPECT_EQ(read.outcome, Outcome::kFailed);
  EXPECT_EQ(read.detail, "the caller has left");
}

TEST_F(BindingReaderTest, ThatPathIsNoDirectorys) {
  EXPECT_EQ(Reads(kTensorsPath, 0).reason, "PATH_OUTSIDE_ROOTS");
}

TEST_F(BindingReaderTest, WhatCameAsTensorsCannotBeReadAgain) {
  const BindingRead read = Reads(kTensorsPath, 7);
  ASSERT_TRUE(shelf_->Delete(read.name).ok());
  Fetch fetch{.op = 2, .name = read.name, .digest = read.digest, .render = read.render};
  fetch.binding.path = kTensorsPath;
  reader_->Fetch(fetch);
  const Event event = Heard();
  const auto& failed = std::get<FetchFailed>(event);
  EXPECT_EQ(failed.reason, "BINDING_LOST");
  EXPECT_TRUE(failed.permanent);
  EXPECT_NE(failed.detail.find("load the adapter again"), std::string::npos);
}

}  // namespace
}  // namespace lorry::proxy
