// A call with tensors becomes what a directory with them holds, byte for byte, or is refused.
#include "services/engine_proxy/bindings/tensor_call.h"

#include <gtest/gtest.h>

#include <string>

#include "lib/base/digest.h"
#include "lib/base/error.h"
#include "tests/unit/engine_proxy/bindings/torch_pickles.h"

namespace lorry::proxy {
namespace {

using Json = nlohmann::json;
constexpr uint64_t kMax = 1u << 20;

Json CallOf(const Json& row) {
  Json call = {{"lora_name", "a"},
               {"serialized_named_tensors", {row["pickle"]}},
               {"config_dict", {{"peft_type", "LORA"}, {"r", 2}}}};
  if (row["bucket"].get<bool>()) call["load_format"] = "flattened_bucket";
  return call;
}
Json Call(const std::string& name = "protocol_4") { return CallOf(Accepted(name)); }

std::string Text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
std::string ReasonOf(const Json& call) {
  const auto read = ReadTensorCall(call.dump(), kMax);
  return read.ok() ? "" : lorry::ReasonOf(read.status());
}

TEST(TensorCall, IsWhatPeftWritesToADirectory) {
  for (const Json& row : TorchPickles()["accepted"]) {
    const auto read = ReadTensorCall(CallOf(row).dump(), kMax);
    ASSERT_TRUE(read.ok()) << row["name"] << read.status();
    EXPECT_EQ(Text(read->image()), Decoded(row["image"])) << row["name"];
    EXPECT_EQ(Json::parse(read->config_json), Call()["config_dict"]);
  }
}

TEST(TensorCall, TheTextOfOlderServersIsReadToo) {
  Json call = Call();
  call["serialized_tensors"] = call["serialized_named_tensors"][0];
  EXPECT_EQ(ReasonOf(call), "") << "both, as clients of both send it";
  call.erase("serialized_named_tensors");
  EXPECT_EQ(ReasonOf(call), "");
  call["serialized_named_tensors"] = nullptr;
  EXPECT_EQ(ReasonOf(call), "");
  call.erase("serialized_tensors");
  EXPECT_EQ(ReasonOf(call), "TENSORS_INVALID");
}

TEST(TensorCall, EveryRankHasTheSame) {
  Json call = Call();
  Json& ranks = call["serialized_named_tensors"];
  ranks.push_back(ranks[0]);
  ranks.push_back(Accepted("ordered")["pickle"]);  // other bytes that say the same
  EXPECT_EQ(ReasonOf(call), "");
  ranks.push_back(Accepted("bf16")["pickle"]);
  EXPECT_EQ(ReasonOf(call), "TENSORS_INVALID");
  ranks[3] = "AAAA";
  EXPECT_EQ(ReasonOf(call), "TENSORS_INVALID");
  ranks = Json::array();
  EXPECT_EQ(ReasonOf(call), "TENSORS_INVALID");
}

TEST(TensorCall, Base64IsStrict) {
  const auto pickle = Call()["serialized_named_tensors"][0].get<std::string>();
  for (const std::string& wrong :
       {pickle + "=", pickle.substr(0, 40) + "\n" + pickle.substr(40), "====" + pickle,
        "    " + pickle, "-" + pickle.substr(1), pickle.substr(0, 8) + "=" + pickle.substr(9)}) {
    Json call = Call();
    call["serialized_named_tensors"] = {wrong};
    const auto read = ReadTensorCall(call.dump(), kMax);
    EXPECT_EQ(lorry::ReasonOf(read.status()), "TENSORS_INVALID") << wrong;
    EXPECT_NE(read.status().message().find("no base64"), absl::string_view::npos) << wrong;
  }
}

TEST(TensorCall, ChecksumsAreOfEachTensorsBytes) {
  const std::string image = Decoded(Accepted("protocol_4")["image"]);
  Json sums;
  const Json header = Json::parse(image.substr(
      8, static_cast<unsigned char>(image[0]) + 256 * static_cast<unsigned char>(image[1])));
  const size_t data = image.size() - 56;  // 14 elements of 4 bytes
  for (const auto& [name, tensor] : header.items()) {
    if (name == "__metadata__") continue;
    const size_t begin = tensor["data_offsets"][0], end = tensor["data_offsets"][1];
    sums[name] = ToHex(HashSha256(std::string_view(image).substr(data + begin, end - begin)));
  }
  Json call = Call();
  call["expected_checksums"] = sums;
  EXPECT_EQ(ReasonOf(call), "");
  for (auto& [name, sum] : sums.items()) {
    Json other = call;
    other["expected_checksums"][name] = std::string(64, '0');
    EXPECT_EQ(ReasonOf(other), "TENSORS_INVALID") << name;
    other["expected_checksums"].erase(name);
    EXPECT_EQ(ReasonOf(other), "TENSORS_INVALID") << name;
  }
  call["expected_checksums"]["more"] = std::string(64, '0');
  EXPECT_EQ(ReasonOf(call), "TENSORS_INVALID");
  call["expected_checksums"] = "none";
  EXPECT_EQ(ReasonOf(call), "TENSORS_INVALID");
}

TEST(TensorCall, WhatIsBesideTheTensorsIsRead) {
  Json call = Call();
  call["load_format"] = nullptr;
  call["pinned"] = true;
  call["added_tokens_config"] = Json::object();
  EXPECT_EQ(ReasonOf(call), "");
  call["added_tokens_config"] = {{"<a>", 32000}};
  EXPECT_EQ(ReasonOf(call), "EMBEDDING_UNSUPPORTED");
  call = Call();
  call["load_format"] = "flattened_bucket";
  EXPECT_EQ(ReasonOf(call), "TENSORS_INVALID") << "it is a dict";
  call["load_format"] = "auto";
  EXPECT_EQ(ReasonOf(call), "TENSORS_INVALID");
  call = Call();
  call["config_dict"] = "{}";
  EXPECT_EQ(ReasonOf(call), "TENSORS_INVALID");
  call.erase("config_dict");
  EXPECT_EQ(ReasonOf(call), "TENSORS_INVALID");
  call = Call();
  call["config_dict"]["more"] = std::string(2u << 20, 'x');
  EXPECT_EQ(ReasonOf(call), "DIRECTORY_TOO_LARGE");
}

TEST(TensorCall, WhatIsNoCallIsRefused) {
  for (const std::string body : {"", "[]", "{", "3"})
    EXPECT_FALSE(ReadTensorCall(body, kMax).ok()) << body;
}

}  // namespace
}  // namespace lorry::proxy
