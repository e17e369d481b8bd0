#include "tests/unit/peft/test_image.h"

#include <fstream>
#include <iterator>

#include "lib/base/check.h"

namespace lorry::peft {

std::span<const std::byte> Bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::string ReadTestdata(std::string_view file) {
  std::ifstream in(absl::StrCat(LORRY_PEFT_TESTDATA, "/", ToAbsl(file)), std::ios::binary);
  LORRY_CHECK(in.good());
  return {std::istreambuf_iterator<char>(in), {}};
}

nlohmann::json ReadGolden(std::string_view file) {
  return nlohmann::json::parse(ReadTestdata(file));
}

std::string ImageOf(std::string_view json, size_t data_bytes) {
  std::string padded(json);
  padded.append((8 - padded.size() % 8) % 8, ' ');
  std::string image;
  for (int shift = 0; shift < 64; shift += 8) {
    image += static_cast<char>(static_cast<uint64_t>(padded.size()) >> shift);
  }
  return image + padded + std::string(data_bytes, '\0');
}

absl::StatusOr<ImageHeader> Parse(std::string_view image) {
  return ParseImageHeader(Bytes(image), image.size());
}

TestImage& TestImage::Tensor(std::string name, Dtype dtype, std::vector<uint64_t> shape) {
  specs_.push_back({std::move(name), dtype, std::move(shape)});
  return *this;
}

TestImage& TestImage::Module(std::string_view path, uint64_t in, uint64_t out, uint64_t r,
                             Dtype dtype) {
  const std::string stem = absl::StrCat("base_model.model.", ToAbsl(path));
  Tensor(stem + ".lora_A.weight", dtype, {r, in});
  return Tensor(stem + ".lora_B.weight", dtype, {out, r});
}

ImageHeader TestImage::Header() const {
  auto layout = LayOutImage(specs_, Metadata{{"format", "pt"}});
  LORRY_CHECK(layout.ok());
  return std::move(layout)->header;
}

}  // namespace lorry::peft
