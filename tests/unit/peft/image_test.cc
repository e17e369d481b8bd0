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

struct MalformedHeader {
  std::string_view why, says;
  std::string json;
};
// Each is wrong in one way; 64 bytes of data follow.
const std::vector<MalformedHeader> kMalformedHeaders = {
    {"nothing", "does not begin with {", ""},
    {"no tensors", "holds no tensors", "{}"},
    {"a list", "does not begin with {", "[]"},
    {"no JSON", "not JSON at byte", "{nonsense}"},
    {"cut short", "not JSON at byte", R"({"t":{"dtype":"F32")"},
    {"two documents", "not JSON at byte", std::string(kOne) + "{}"},
    {"a byte order mark", "does not begin with {", "\xef\xbb\xbf" + std::string(kOne)},
    {"a NUL after the end", "holds a NUL", std::string(kOne) + std::string(1, '\0')},
    {"a leading space", "does not begin with {", " " + std::string(kOne)},
    {"unknown dtype", "the unknown dtype \"F33\"",
     R"({"t":{"dtype":"F33","shape":[16],"data_offsets":[0,64]}})"},
    {"dtype a number", "a number where none belongs",
     R"({"t":{"dtype":32,"shape":[16],"data_offsets":[0,64]}})"},
    {"no dtype", "lacks its dtype", R"({"t":{"shape":[16],"data_offsets":[0,64]}})"},
    {"no shape", "lacks its dtype", R"({"t":{"dtype":"F32","data_offsets":[0,64]}})"},
    {"no offsets", "lacks its dtype", R"({"t":{"dtype":"F32","shape":[16]}})"},
    {"one offset", "lacks its dtype", R"({"t":{"dtype":"F32","shape":[16],"data_offsets":[64]}})"},
    {"three offsets", "a list of more than 2 numbers",
     R"({"t":{"dtype":"F32","shape":[16],"data_offsets":[0,64,64]}})"},
    {"an unknown field", "repeated field \"x\"",
     R"({"t":{"dtype":"F32","shape":[16],"data_offsets":[0,64],"x":1}})"},
    {"a field twice", "repeated field \"dtype\"",
     R"({"t":{"dtype":"F32","dtype":"F32","shape":[16],"data_offsets":[0,64]}})"},
    {"a shape twice", "repeated field \"shape\"",
     R"({"t":{"dtype":"F32","shape":[16],"shape":[16],"data_offsets":[0,64]}})"},
    {"offsets twice", "repeated field \"data_offsets\"",
     R"({"t":{"dtype":"F32","shape":[16],"data_offsets":[0,64],"data_offsets":[0,64]}})"},
    {"an unknown field first", "repeated field \"x\"",
     R"({"t":{"x":[16],"dtype":"F32","shape":[16],"data_offsets":[0,64]}})"},
    {"an unknown field in the middle", "repeated field \"x\"",
     R"({"t":{"dtype":"F32","shape":[16],"x":[0,64],"data_offsets":[0,64]}})"},
    {"a shape that is a text", "a string where none belongs",
     R"({"t":{"dtype":"F32","shape":"x","data_offsets":[0,64]}})"},
    {"a dtype that is a list", "a list where none belongs",
     R"({"t":{"dtype":[1],"shape":[16],"data_offsets":[0,64]}})"},
    {"a name twice, not beside itself", "appears twice",
     R"({"t":{"dtype":"F32","shape":[8],"data_offsets":[0,32]},)"
     R"("a":{"dtype":"F32","shape":[0],"data_offsets":[32,32]},)"
     R"("t":{"dtype":"F32","shape":[8],"data_offsets":[32,64]}})"},
    {"offsets that wrap around", "do not fit its shape",
     R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[18446744073709551612,0]}})"},
    {"negative extent", "a negative number",
     R"({"t":{"dtype":"F32","shape":[-16],"data_offsets":[0,64]}})"},
    {"fraction", "a fraction", R"({"t":{"dtype":"F32","shape":[16.0],"data_offsets":[0,64]}})"},
    {"extent above 64 bits", "a fraction",
     R"({"t":{"dtype":"F32","shape":[99999999999999999999999],"data_offsets":[0,64]}})"},
    {"extents overflow", "do not fit its shape",
     R"({"t":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})"},
    {"extents overflow to fit", "do not fit its shape",
     R"({"t":{"dtype":"F32","shape":[4611686018427387905],"data_offsets":[0,4]}})"},
    {"nine dimensions", "a list of more than 8 numbers",
     R"({"t":{"dtype":"F32","shape":[1,1,1,1,1,1,1,1,16],"data_offsets":[0,64]}})"},
    {"null", "has null", R"({"t":null})"},
    {"true", "a boolean", R"({"t":{"dtype":true,"shape":[16],"data_offsets":[0,64]}})"},
    {"a tensor that is a list", "has a list", R"({"t":[]})"},
    {"a nested list", "has a list",
     R"({"t":{"dtype":"F32","shape":[[16]],"data_offsets":[0,64]}})"},
    {"a nested object", "has an object",
     R"({"t":{"dtype":{},"shape":[16],"data_offsets":[0,64]}})"},
    {"the same name twice", "appears twice",
     R"({"t":{"dtype":"F32","shape":[8],"data_offsets":[0,32]},)"
     R"("t":{"dtype":"F32","shape":[8],"data_offsets":[32,64]}})"},
    {"an escaped name twice", "appears twice",
     R"({"t":{"dtype":"F32","shape":[8],"data_offsets":[0,32]},)"
     R"("\u0074":{"dtype":"F32","shape":[8],"data_offsets":[32,64]}})"},
    {"end before begin", "do not fit its shape",
     R"({"t":{"dtype":"F32","shape":[16],"data_offsets":[64,0]}})"},
    {"size and shape differ", "do not fit its shape",
     R"({"t":{"dtype":"F32","shape":[15],"data_offsets":[0,64]}})"},
    {"a gap in front", "leaves a gap",
     R"({"t":{"dtype":"F32","shape":[15],"data_offsets":[4,64]}})"},
    {"a gap between", "leaves a gap",
     R"({"a":{"dtype":"F32","shape":[7],"data_offsets":[0,28]},)"
     R"("b":{"dtype":"F32","shape":[8],"data_offsets":[32,64]}})"},
    {"an overlap", "leaves a gap",
     R"({"a":{"dtype":"F32","shape":[9],"data_offsets":[0,36]},)"
     R"("b":{"dtype":"F32","shape":[8],"data_offsets":[32,64]}})"},
    {"the same bytes twice", "leaves a gap",
     R"({"a":{"dtype":"F32","shape":[16],"data_offsets":[0,64]},)"
     R"("b":{"dtype":"F32","shape":[16],"data_offsets":[0,64]}})"},
    {"bytes left over", ": 28 bytes follow",
     R"({"a":{"dtype":"F32","shape":[9],"data_offsets":[0,36]}})"},
    {"metadata a text", "a string where none belongs",
     R"({"__metadata__":"x","t":{"dtype":"F32","shape":[16],"data_offsets":[0,64]}})"},
    {"metadata of numbers", "a number where none belongs",
     R"({"__metadata__":{"x":1},"t":{"dtype":"F32","shape":[16],"data_offsets":[0,64]}})"},
    {"metadata nested", "an object where none belongs",
     R"({"__metadata__":{"x":{}},"t":{"dtype":"F32","shape":[16],"data_offsets":[0,64]}})"},
    {"metadata key twice", "appears twice",
     R"({"__metadata__":{"x":"1","x":"2"},"t":{"dtype":"F32","shape":[16],)"
     R"("data_offsets":[0,64]}})"},
    {"metadata twice", "__metadata__ twice",
     R"({"__metadata__":{},"__metadata__":{},"t":{"dtype":"F32","shape":[16],)"
     R"("data_offsets":[0,64]}})"},
    {"only metadata", "holds no tensors", R"({"__metadata__":{"format":"pt"}})"},
    {"a name that is not UTF-8", "not JSON at byte",
     "{\"\xff\":{\"dtype\":\"F32\",\"shape\":[16],\"data_offsets\":[0,64]}}"},
    {"a name too long", "a name is too long",
     "{\"" + std::string(kTensorNameBytesMax + 1, 'n') +
         R"(":{"dtype":"F32","shape":[16],"data_offsets":[0,64]}})"},
};

TEST(ImageReader, RefusesMalformedHeaders) {
  for (const auto& [why, says, json] : kMalformedHeaders) {
    EXPECT_THAT(Parse(ImageOf(json, 64)), RefusedSaying("IMAGE_MALFORMED", says)) << why;
  }
}

TEST(ImageReader, TakesWhatLiesAtItsLimits) {
  const std::string longest = "{\"" + std::string(kTensorNameBytesMax, 'n') +
                              R"(":{"dtype":"F32","shape":[16],"data_offsets":[0,64]}})";
  EXPECT_THAT(Parse(ImageOf(longest, 64)), IsOk());
  EXPECT_THAT(
      Parse(ImageOf(
          R"({"t":{"dtype":"U8","shape":[1099511627776],"data_offsets":[0,1099511627776]}})", 64)),
      RefusedSaying("IMAGE_TRUNCATED", "needs 10995116278"))
      << "1 TiB is a length that an image may have, this one lacks the bytes";
  std::string claims(8, '\0');
  EXPECT_EQ(*HeaderBytes(Bytes(claims), kImageBytesMax), 8u);
  claims[3] = 1;
  static_assert(kHeaderBytesMax == 0x01'00'00'00);
  EXPECT_EQ(*HeaderBytes(Bytes(claims), 1 << 30), 8u + kHeaderBytesMax);
}

TEST(ImageReader, SaysHowManyBytesAreMissing) {
  std::string claims(8, '\0');
  claims[0] = 100;
  for (const uint64_t image_bytes : {50, 104, 107}) {
    EXPECT_THAT(HeaderBytes(Bytes(claims), image_bytes),
                RefusedSaying("IMAGE_TRUNCATED",
                              absl::StrCat("has ", image_bytes, " bytes and needs 108")));
  }
  EXPECT_EQ(*HeaderBytes(Bytes(claims), 108), 108u);
  // The length itself is cut: what lies behind the span is not looked at.
  EXPECT_THAT(HeaderBytes(Bytes(claims).first(7), 1000),
              RefusedSaying("IMAGE_TRUNCATED", "needs 8"));
}

TEST(ImageReader, TensorsMayBeListedInAnyOrder) {
  const auto header = Parse(ImageOf(R"({"b":{"dtype":"F32","shape":[8],"data_offsets":[32,64]},)"
                                    R"("a":{"dtype":"F32","shape":[8],"data_offsets":[0,32]}})",
                                    64));
  ASSERT_THAT(header, IsOk());
  EXPECT_EQ(header->tensors.front().name, "a");
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
