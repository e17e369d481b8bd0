// Tensors as torch writes them are what it meant; everything else is refused by what it is.
#include "services/engine_proxy/bindings/torch_pickle.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "lib/base/error.h"
#include "tests/unit/engine_proxy/bindings/torch_pickles.h"

namespace lorry::proxy {
namespace {

constexpr uint64_t kMax = 1u << 20;

TEST(TorchPickle, WhatIsNoDictOfDenseTensorsIsRefused) {
  for (const nlohmann::json& row : TorchPickles()["refused"]) {
    const std::string pickle = Decoded(row["pickle"]);
    const auto read = ReadTorchPickle(pickle, LayoutOf(row), kMax);
    ASSERT_FALSE(read.ok()) << row["name"];
    EXPECT_EQ(ReasonOf(read.status()), row["reason"]) << row["name"] << read.status();
  }
}

TEST(TorchPickle, ARefusalSaysWhatWasFoundAndWhatToDo) {
  const auto says = [](const std::string& name) -> std::string {
    for (const nlohmann::json& row : TorchPickles()["refused"]) {
      if (row["name"] != name) continue;
      const std::string pickle = Decoded(row["pickle"]);
      return std::string(ReadTorchPickle(pickle, LayoutOf(row), kMax).status().message());
    }
    return "";
  };
  EXPECT_NE(says("system").find("\"posix\" \"system\""), std::string::npos) << says("system");
  EXPECT_NE(says("on_a_gpu").find("lie on a GPU"), std::string::npos);
  EXPECT_NE(says("descriptors").find("shares with its own children"), std::string::npos);
  EXPECT_NE(says("shared_files").find("/load_lora_adapter"), std::string::npos);
  EXPECT_NE(says("larger_than_its_storage").find("beyond its storage"), std::string::npos);
  EXPECT_NE(says("repeated").find("repeats its bytes"), std::string::npos);
}

TEST(TorchPickle, NoPartOfOneIsOne) {
  for (const std::string name : {"protocol_4", "parameters", "bucket"}) {
    const nlohmann::json& row = Accepted(name);
    const std::string pickle = Decoded(row["pickle"]);
    for (size_t length = 0; length < pickle.size(); ++length) {
      const std::string part = pickle.substr(0, length);
      EXPECT_FALSE(ReadTorchPickle(part, LayoutOf(row), kMax).ok()) << name << " " << length;
    }
  }
}

TEST(TorchPickle, AllTogetherHaveOnlySoManyBytes) {
  const nlohmann::json& row = Accepted("protocol_4");  // 14 elements of 4 bytes
  const std::string pickle = Decoded(row["pickle"]);
  EXPECT_TRUE(ReadTorchPickle(pickle, TensorLayout::kDict, 56).ok());
  EXPECT_EQ(ReasonOf(ReadTorchPickle(pickle, TensorLayout::kDict, 55).status()),
            "DIRECTORY_TOO_LARGE");
}

// All entries of the list may be one object, which is then looked through as often: with a million
// fields in it a few megabytes would keep the reader busy for minutes.
TEST(TorchPickle, AnEntryOfABucketHasFewFields) {
  const std::string pickle = Decoded(Accepted("bucket")["pickle"]);
  const std::string first_field = "(\x8c\x04name";  // of six
  const size_t at = pickle.find(first_field) + 1;
  const auto with_more = [&](size_t fields) {
    std::string more = pickle;
    for (size_t i = 0; i < fields; ++i) more.insert(at, "K\x01N");
    return ReadTorchPickle(more, TensorLayout::kFlatBucket, kMax).status();
  };
  EXPECT_TRUE(with_more(26).ok()) << with_more(26);
  EXPECT_EQ(ReasonOf(with_more(27)), "TENSORS_INVALID") << with_more(27);
}

std::vector<uint8_t> Copied(const std::vector<uint64_t>& shape,
                            const std::vector<uint64_t>& strides) {
  static const std::vector<uint8_t> memory = [] {
    std::vector<uint8_t> bytes(64);
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i);
    return bytes;
  }();
  const SentTensor tensor{"a", peft::Dtype::kU8, shape, strides, std::as_bytes(std::span(memory))};
  std::vector<uint8_t> to(tensor.bytes());
  CopyTensor(tensor, std::as_writable_bytes(std::span(to)));
  return to;
}

TEST(TorchPickle, StridesAreFollowed) {
  using Bytes = std::vector<uint8_t>;
  EXPECT_EQ(Copied({}, {}), Bytes({0}));
  EXPECT_EQ(Copied({0, 3}, {3, 1}), Bytes());
  EXPECT_EQ(Copied({2, 3}, {3, 1}), Bytes({0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(Copied({2, 3}, {8, 1}), Bytes({0, 1, 2, 8, 9, 10}));
  EXPECT_EQ(Copied({2, 3}, {1, 2}), Bytes({0, 2, 4, 1, 3, 5}));
  EXPECT_EQ(Copied({2, 3}, {0, 0}), Bytes({0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(Copied({2, 1, 2}, {4, 99, 1}), Bytes({0, 1, 4, 5}));
  EXPECT_EQ(Copied({2, 2, 2}, {1, 16, 4}), Bytes({0, 4, 16, 20, 1, 5, 17, 21}));
}

}  // namespace
}  // namespace lorry::proxy
