// What a framework may make this proxy read, and what it may not.
#include "services/engine_proxy/bindings/foreign_directory.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "lib/base/error.h"
#include "tests/testing/temp_dir.h"

namespace lorry::proxy {
namespace {

namespace fs = std::filesystem;
constexpr uint64_t kMax = 1'000;

void Write(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

class ForeignDirectoryTest : public ::testing::Test {
 protected:
  ForeignDirectoryTest() {
    fs::create_directories(root_ / "a");
    Write(root_ / "a/adapter_config.json", "{}");
    Write(root_ / "a/adapter_model.safetensors", "bytes");
    fs::create_directories(elsewhere_ / "a");
    Write(elsewhere_ / "a/adapter_config.json", "secret");
    Write(elsewhere_ / "a/adapter_model.safetensors", "secret");
  }
  std::string Reads(const std::string& path, const std::function<void()>& before_check = {}) {
    const auto roots = BindingRoots::Open({root_.path()});
    EXPECT_TRUE(roots.ok()) << roots.status();
    const auto read = ReadForeignDirectory(*roots, path, kMax, before_check);
    if (!read.ok()) return std::string(ReasonOf(read.status()));
    const auto image = read->image();
    return read->config_json + " " +
           std::string(reinterpret_cast<const char*>(image.data()), image.size());
  }

  TempDir root_, elsewhere_;
};

TEST_F(ForeignDirectoryTest, WhatLiesBeneathARootIsRead) {
  EXPECT_EQ(Reads(root_ / "a"), "{} bytes");
  EXPECT_EQ(Reads(root_ / "a/"), "{} bytes");
  EXPECT_EQ(Reads(root_ / "b/../a"), "DIRECTORY_INVALID") << "there is no b";
}

TEST_F(ForeignDirectoryTest, NothingElseIs) {
  EXPECT_EQ(Reads(elsewhere_ / "a"), "PATH_OUTSIDE_ROOTS");
  EXPECT_EQ(Reads(root_ / ("a/../../" + fs::path(elsewhere_.path()).filename().string() + "/a")),
            "PATH_OUTSIDE_ROOTS");
  EXPECT_EQ(Reads("a"), "PATH_OUTSIDE_ROOTS") << "a name on a hub";
  EXPECT_EQ(Reads(root_.path() + "x/a"), "PATH_OUTSIDE_ROOTS");
  EXPECT_EQ(Reads(std::string("/\0", 2)), "PATH_OUTSIDE_ROOTS");
}

TEST_F(ForeignDirectoryTest, LinksMayNotLeadOut) {
  fs::create_directory_symlink(elsewhere_ / "a", root_ / "out");
  EXPECT_EQ(Reads(root_ / "out"), "PATH_OUTSIDE_ROOTS");
  fs::remove(root_ / "a/adapter_config.json");
  fs::create_symlink(elsewhere_ / "a/adapter_config.json", root_ / "a/adapter_config.json");
  EXPECT_EQ(Reads(root_ / "a"), "PATH_OUTSIDE_ROOTS");
}

TEST_F(ForeignDirectoryTest, LinksBeneathTheRootAreFollowed) {
  // As caches of the Hugging Face Hub are made.
  fs::create_directories(root_ / "blobs");
  fs::create_directories(root_ / "snapshots/s");
  Write(root_ / "blobs/1", "{}");
  Write(root_ / "blobs/2", "linked");
  fs::create_symlink("../../blobs/1", root_ / "snapshots/s/adapter_config.json");
  fs::create_symlink("../../blobs/2", root_ / "snapshots/s/adapter_model.safetensors");
  EXPECT_EQ(Reads(root_ / "snapshots/s"), "{} linked");
}

TEST_F(ForeignDirectoryTest, WhatIsNoFileIsRefused) {
  fs::remove(root_ / "a/adapter_model.safetensors");
  ASSERT_EQ(::mkfifo((root_ / "a/adapter_model.safetensors").c_str(), 0600), 0);
  EXPECT_EQ(Reads(root_ / "a"), "DIRECTORY_INVALID") << "nobody waits for a writer";
  fs::remove(root_ / "a/adapter_model.safetensors");
  EXPECT_EQ(Reads(root_ / "a"), "DIRECTORY_INVALID");
}

TEST_F(ForeignDirectoryTest, SizesAreBounded) {
  Write(root_ / "a/adapter_model.safetensors", std::string(kMax + 1, 'x'));
  EXPECT_EQ(Reads(root_ / "a"), "DIRECTORY_TOO_LARGE");
  Write(root_ / "a/adapter_model.safetensors", std::string(kMax, 'x'));
  EXPECT_EQ(Reads(root_ / "a"), "{} " + std::string(kMax, 'x'));
  Write(root_ / "a/adapter_config.json", std::string((1u << 20) + 1, ' '));
  EXPECT_EQ(Reads(root_ / "a"), "DIRECTORY_TOO_LARGE");
}

TEST_F(ForeignDirectoryTest, WhatChangesMeanwhileIsRefused) {
  const std::string image = root_ / "a/adapter_model.safetensors";
  EXPECT_EQ(Reads(root_ / "a", [&] { Write(image, "other"); }), "DIRECTORY_CHANGED");
  EXPECT_EQ(Reads(root_ / "a",
                  [&] {
                    Write(image + ".new", "moved");
                    fs::rename(image + ".new", image);
                  }),
            "DIRECTORY_CHANGED");
  EXPECT_EQ(Reads(root_ / "a", [&] { Write(root_ / "a/adapter_config.json", "[]"); }),
            "DIRECTORY_CHANGED");
  EXPECT_EQ(Reads(root_ / "a", [&] { fs::remove(image); }), "DIRECTORY_CHANGED");
}

TEST_F(ForeignDirectoryTest, WithoutARootNothingIsRead) {
  const auto none = BindingRoots::Open({});
  ASSERT_TRUE(none.ok());
  EXPECT_EQ(ReasonOf(ReadForeignDirectory(*none, root_ / "a", kMax).status()), "BINDINGS_OFF");
  EXPECT_FALSE(BindingRoots::Open({"relative"}).ok());
  EXPECT_FALSE(BindingRoots::Open({root_ / "nowhere"}).ok());
}

}  // namespace
}  // namespace lorry::proxy
