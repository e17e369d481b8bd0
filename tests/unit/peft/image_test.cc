#include "lib/peft/image.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/unit/peft/test_image.h"

namespace lorry::peft {
namespace {

constexpr std::string_view kOne = R"({"t":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}})";

TEST(ImageWriter, WritesWhatTheSafetensorsPackageWrites) {
  for (const auto& golden : ReadGolden("images.json")) {
    SCOPED_TRACE(golden["file"].get<std::string>());
    const std::string image = ReadTestdata("images/" + golden["file"].get<std::string>());
    std::vector<TensorSpec> specs;
    for (const auto& tensor : golden["tensors"]) {
      specs.push_back({tensor["name"], DtypeFromString(tensor["dtype"].get<std::string>()).value(),
                       tensor["shape"]});
    }
    std::optional<Metadata> metadata;
    if (!golden["metadata"].is_null()) {
      metadata.emplace();
      for (const auto& [key, value] : golden["metadata"].items())
        metadata->emplace_back(key, value);
    }
    std::reverse(specs.begin(), specs.end());  // the order given must not matter
    const auto layout = LayOutImage(specs, metadata);
    ASSERT_THAT(layout, IsOk());
    EXPECT_EQ(layout->header_bytes, image.substr(0, layout->header.data_begin));
    EXPECT_EQ(layout->header.image_bytes, image.size());
  }
}

TEST(ImageReader, ReadsWhatTheSafetensorsPackageWrites) {
  for (const auto& golden : ReadGolden("images.json")) {
    SCOPED_TRACE(golden["file"].get<std::string>());
    const std::string image = ReadTestdata("images/" + golden["file"].get<std::string>());
    const auto header = Parse(image);
    ASSERT_THAT(header, IsOk());
    ASSERT_EQ(header->tensors.size(), golden["tensors"].size());
    EXPECT_EQ(header->tensors.front().begin, header->data_begin);
    EXPECT_EQ(header->tensors.back().end, image.size());
    for (const auto& expected : golden["tensors"]) {
      const auto found = std::find_if(header->tensors.begin(), header->tensors.end(),
                                      [&](const Tensor& t) { return t.name == expected["name"]; });
      ASSERT_NE(found, header->tensors.end());
      EXPECT_EQ(ToString(found->dtype), expected["dtype"].get<std::string>());
      EXPECT_EQ(found->shape, expected["shape"].get<std::vector<uint64_t>>());
    }
  }
}

TEST(ImageReader, NeedsTheHeaderAlone) {
  const std::string image = ReadTestdata("images/lora_bf16.safetensors");
  const auto bytes = HeaderBytes(Bytes(image.substr(0, 8)), image.size());
  ASSERT_THAT(bytes, IsOk());
  const auto from_header = ParseImageHeader(Bytes(image.substr(0, *bytes)), image.size());
  ASSERT_THAT(from_header, IsOk());
  EXPECT_EQ(*from_header, *Parse(image));
}

TEST(ImageReader, KeepsMetadataInOrder) {
  const auto header = Parse(ImageOf(
      R"({"__metadata__":{"z":"1","a":"2"},"t":{"shape":[1],"data_offsets":[0,2],"dtype":"BF16"}})",
      2));
  ASSERT_THAT(header, IsOk());
  EXPECT_EQ(header->metadata, (Metadata{{"z", "1"}, {"a", "2"}}));
}

TEST(ImageReader, AnImageCutAnywhereIsTruncated) {
  const std::string image = ReadTestdata("images/lora_f16_bare.safetensors");
  for (size_t bytes = 0; bytes < image.size(); ++bytes) {
    ASSERT_THAT(Parse(image.substr(0, bytes)), RefusedAs("IMAGE_TRUNCATED")) << bytes;
  }
}

TEST(ImageReader, ATooShortPrefixIsTruncated) {
  const std::string image = ReadTestdata("images/lora_f32.safetensors");
  EXPECT_THAT(ParseImageHeader(Bytes(image.substr(0, 100)), image.size()),
              RefusedAs("IMAGE_TRUNCATED"));
}

TEST(ImageReader, AHeaderThatClaimsAbsurdSizesIsRefusedBeforeAnyAllocation) {
  const std::string huge(8, '\xff');
  EXPECT_THAT(Parse(huge), RefusedAs("IMAGE_MALFORMED"));
  std::string above = ImageOf(kOne, 24);
  above[3] = 1;  // 16 MiB more
  EXPECT_THAT(Parse(above), RefusedAs("IMAGE_MALFORMED"));
  EXPECT_THAT(HeaderBytes(Bytes(ImageOf(kOne, 24)), kImageBytesMax + 1),
              RefusedAs("IMAGE_MALFORMED"));
}

TEST(ImageReader, BytesAfterTheLastTensorAreRefused) {
  EXPECT_THAT(Parse(ImageOf(kOne, 24)), IsOk());
  EXPECT_THAT(Parse(ImageOf(kOne, 25)), RefusedAs("IMAGE_MALFORMED"));
}

// Every header here is wrong in one way; 64 bytes of data follow.
TEST(ImageReader, RefusesMalformedHeaders) {
  const std::vector<std::pair<std::string_view, std::string>> cases = {
      {"nothing", ""},
      {"no tensors", "{}"},
      {"a list", "[]"},
      {"no JSON", "{nonsense}"},
      {"cut short", R"({"t":{"dtype":"F32")"},
      {"two documents", std::string(kOne) + "{}"},
      {"a byte order mark", "\xef\xbb\xbf" + std::string(kOne)},
      {"a NUL after the end", std::string(kOne) + std::string(1, '\0')},
      {"a leading space", " " + std::string(kOne)},
      {"unknown dtype", R"({"t":{"dtype":"F33","shape":[16],"data_offsets":[0,64]}})"},
      {"dtype a number", R"({"t":{"dtype":32,"shape":[16],"data_offsets":[0,64]}})"},
      {"no dtype", R"({"t":{"shape":[16],"data_offsets":[0,64]}})"},
      {"no shape", R"({"t":{"dtype":"F32","data_offsets":[0,64]}})"},
      {"no offsets", R"({"t":{"dtype":"F32","shape":[16]}})"},
      {"one offset", R"({"t":{"dtype":"F32","shape":[16],"data_offsets":[64]}})"},
      {"three offsets", R"({"t":{"dtype":"F32","shape":[16],"data_offsets":[0,64,64]}})"},
      {"an unknown field", R"({"t":{"dtype":"F32","shape":[16],"data_offsets":[0,64],"x":1}})"},
      {"a field twice",
       R"({"t":{"dtype":"F32","dtype":"F32","shape":[16],"data_offsets":[0,64]}})"},
      {"negative extent", R"({"t":{"dtype":"F32","shape":[-16],"data_offsets":[0,64]}})"},
      {"fraction", R"({"t":{"dtype":"F32","shape":[16.0],"data_offsets":[0,64]}})"},
      {"extent above 64 bits",
       R"({"t":{"dtype":"F32","shape":[99999999999999999999999],"data_offsets":[0,64]}})"},
      {"extents overflow",
       R"({"t":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})"},
      {"extents overflow to fit",
       R"({"t":{"dtype":"F32","shape":[4611686018427387905],"data_offsets":[0,4]}})"},
      {"nine dimensions",
       R"({"t":{"dtype":"F32","shape":[1,1,1,1,1,1,1,1,16],"data_offsets":[0,64]}})"},
      {"null", R"({"t":null})"},
      {"true", R"({"t":{"dtype":true,"shape":[16],"data_offsets":[0,64]}})"},
      {"a tensor that is a list", R"({"t":[]})"},
      {"a nested list", R"({"t":{"dtype":"F32","shape":[[16]],"data_offsets":[0,64]}})"},
      {"a nested object", R"({"t":{"dtype":{},"shape":[16],"data_offsets":[0,64]}})"},
      {"the same name twice", R"({"t":{"dtype":"F32","shape":[8],"data_offsets":[0,32]},)"
                              R"("t":{"dtype":"F32","shape":[8],"data_offsets":[32,64]}})"},
      {"an escaped name twice", R"({"t":{"dtype":"F32","shape":[8],"data_offsets":[0,32]},)"
                                R"("\u0074":{"dtype":"F32","shape":[8],"data_offsets":[32,64]}})"},
      {"end before begin", R"({"t":{"dtype":"F32","shape":[16],"data_offsets":[64,0]}})"},
      {"size and shape differ", R"({"t":{"dtype":"F32","shape":[15],"data_offsets":[0,64]}})"},
      {"a gap in front", R"({"t":{"dtype":"F32","shape":[15],"data_offsets":[4,64]}})"},
      {"a gap between", R"({"a":{"dtype":"F32","shape":[7],"data_offsets":[0,28]},)"
                        R"("b":{"dtype":"F32","shape":[8],"data_offsets":[32,64]}})"},
      {"an overlap", R"({"a":{"dtype":"F32","shape":[9],"data_offsets":[0,36]},)"
                     R"("b":{"dtype":"F32","shape":[8],"data_offsets":[32,64]}})"},
      {"the same bytes twice", R"({"a":{"dtype":"F32","shape":[16],"data_offsets":[0,64]},)"
                               R"("b":{"dtype":"F32","shape":[16],"data_offsets":[0,64]}})"},
      {"bytes left over", R"({"a":{"dtype":"F32","shape":[9],"data_offsets":[0,36]}})"},
      {"metadata a text",
       R"({"__metadata__":"x","t":{"dtype":"F32","shape":[16],"data_offsets":[0,64]}})"},
      {"metadata of numbers",
       R"({"__metadata__":{"x":1},"t":{"dtype":"F32","shape":[16],"data_offsets":[0,64]}})"},
      {"metadata nested",
       R"({"__metadata__":{"x":{}},"t":{"dtype":"F32","shape":[16],"data_offsets":[0,64]}})"},
      {"metadata key twice", R"({"__metadata__":{"x":"1","x":"2"},"t":{"dtype":"F32","shape":[16],)"
                             R"("data_offsets":[0,64]}})"},
      {"metadata twice", R"({"__metadata__":{},"__metadata__":{},"t":{"dtype":"F32","shape":[16],)"
                         R"("data_offsets":[0,64]}})"},
      {"only metadata", R"({"__metadata__":{"format":"pt"}})"},
      {"a name that is not UTF-8",
       "{\"\xff\":{\"dtype\":\"F32\",\"shape\":[16],\"data_offsets\":[0,64]}}"},
      {"a name too long", "{\"" + std::string(kTensorNameBytesMax + 1, 'n') +
                              R"(":{"dtype":"F32","shape":[16],"data_offsets":[0,64]}})"},
  };
  for (const auto& [why, json] : cases) {
    EXPECT_THAT(Parse(ImageOf(json, 64)), RefusedAs("IMAGE_MALFORMED")) << why;
  }
}

TEST(ImageReader, DeepNestingCostsNothing) {
  EXPECT_THAT(Parse(ImageOf("{\"t\":" + std::string(1 << 20, '{'), 0)),
              RefusedAs("IMAGE_MALFORMED"));
}

TEST(ImageReader, TooManyTensorsAreRefused) {
  std::string json = "{";
  for (size_t i = 0; i <= kTensorsMax; ++i) {
    absl::StrAppend(&json, "\"", i, "\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]},");
  }
  json.back() = '}';
  EXPECT_THAT(Parse(ImageOf(json, 0)), RefusedAs("IMAGE_MALFORMED"));
}

TEST(ImageWriter, RefusesWhatTheReaderWould) {
  EXPECT_THAT(LayOutImage({}, std::nullopt), RefusedAs("IMAGE_MALFORMED"));
  EXPECT_THAT(LayOutImage({{"t", Dtype::kF32, {1}}, {"t", Dtype::kF16, {1}}}, std::nullopt),
              RefusedAs("IMAGE_MALFORMED"));
  EXPECT_THAT(LayOutImage({{"t", Dtype::kF32, {1ull << 62, 4}}}, std::nullopt),
              RefusedAs("TENSOR_SHAPE"));
  EXPECT_THAT(LayOutImage({{"\xff", Dtype::kF32, {1}}}, std::nullopt),
              RefusedAs("IMAGE_MALFORMED"));
}

}  // namespace
}  // namespace lorry::peft
