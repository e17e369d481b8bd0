#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/str_cat.h"
#include "lib/base/error.h"
#include "lib/base/strings.h"
#include "lib/peft/image.h"
#include "lib/peft/refusal.h"

namespace lorry::peft {
namespace {

constexpr std::string_view kMetadataKey = "__metadata__";

absl::Status Malformed(std::string_view what) {
  return Refuse("IMAGE_MALFORMED",
                absl::StrCat("the image is not a valid safetensors file: ", ToAbsl(what),
                             "; write it again with safetensors' save_file"));
}

absl::Status Truncated(uint64_t image_bytes, uint64_t needed_bytes) {
  return Refuse("IMAGE_TRUNCATED",
                absl::StrCat("the image has ", image_bytes, " bytes and needs ", needed_bytes,
                             "; write it again and publish once the writer has closed it"));
}

// Reads the header's JSON event by event, so that a hostile one costs no more memory than its own
// size. Offsets stay relative to the data part; Parse below makes them absolute. The names are
// nlohmann's.
class HeaderSax : public nlohmann::json_sax<nlohmann::json> {
 public:
  HeaderSax(Metadata* metadata, std::vector<Tensor>* tensors)
      : metadata_(*metadata), tensors_(*tensors) {}
  const std::string& why() const { return why_; }

  bool null() override { return Unexpected("null"); }
  bool boolean(bool) override { return Unexpected("a boolean"); }
  bool number_integer(number_integer_t) override { return Unexpected("a negative number"); }
  bool number_float(number_float_t, const string_t&) override { return Unexpected("a fraction"); }
  bool binary(binary_t&) override { return Unexpected("binary data"); }
  bool number_unsigned(number_unsigned_t value) override {
    if (at_ != At::kShape && at_ != At::kOffsets) return Unexpected("a number");
    const size_t limit = at_ == At::kShape ? kTensorDimsMax : 2;
    if (numbers_.size() == limit) {
      return Fail(absl::StrCat(Quoted(name_), " has a list of more than ", limit, " numbers"));
    }
    numbers_.push_back(value);
    return true;
  }
  bool string(string_t& text) override {
    if (at_ == At::kMetadata) {
      metadata_.emplace_back(name_, text);
      return true;
    }
    if (at_ != At::kTensor || field_ != Field::kDtype) return Unexpected("a string");
    dtype_ = DtypeFromString(text);
    if (!dtype_) return Fail(absl::StrCat(Quoted(name_), " has the unknown dtype ", Quoted(text)));
    return true;
  }
  bool start_object(size_t) override {
    if (at_ == At::kStart) {
      at_ = At::kTop;
    } else if (at_ == At::kTop) {
      at_ = name_ == kMetadataKey ? At::kMetadata : At::kTensor;
      if (at_ == At::kMetadata && std::exchange(has_metadata_, true))
        return Fail("__metadata__ twice");
    } else {
      return Unexpected("an object");
    }
    return true;
  }
  bool key(string_t& text) override {
    if (at_ != At::kTensor) {
      if (text.size() > kTensorNameBytesMax) return Fail("a name is too long");
      name_ = text;
      return true;
    }
    if (text == "dtype" && !dtype_) {
      field_ = Field::kDtype;
    } else if (text == "shape" && !shape_) {
      field_ = Field::kShape;
    } else if (text == "data_offsets" && !offsets_) {
      field_ = Field::kOffsets;
    } else {
      return Fail(absl::StrCat(Quoted(name_), " has the unknown or repeated field ", Quoted(text)));
    }
    return true;
  }
  bool start_array(size_t) override {
    if (at_ != At::kTensor || field_ == Field::kDtype) return Unexpected("a list");
    at_ = field_ == Field::kShape ? At::kShape : At::kOffsets;
    numbers_.clear();
    return true;
  }
  bool end_array() override {
    (at_ == At::kShape ? shape_ : offsets_) = numbers_;
    at_ = At::kTensor;
    return true;
  }
  bool end_object() override {
    if (at_ == At::kTensor && !EndTensor()) return false;
    at_ = At::kTop;
    return true;
  }
  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    return Fail(absl::StrCat("its header is not JSON at byte ", position));
  }

 private:
  enum class At { kStart, kTop, kMetadata, kTensor, kShape, kOffsets };
  enum class Field { kDtype, kShape, kOffsets };

  // Reading ends with the first event that fails.
  bool Fail(std::string why) {
    why_ = std::move(why);
    return false;
  }
  bool Unexpected(std::string_view what) {
    return Fail(
        absl::StrCat("its header has ", ToAbsl(what), " where none belongs, near ", Quoted(name_)));
  }
  bool EndTensor() {
    if (!dtype_ || !shape_ || !offsets_ || offsets_->size() != 2) {
      return Fail(absl::StrCat(Quoted(name_), " lacks its dtype, shape or two data_offsets"));
    }
    if (tensors_.size() == kTensorsMax) {
      return Fail(absl::StrCat("it has more than ", kTensorsMax, " tensors"));
    }
    tensors_.push_back({name_, *dtype_, std::move(*shape_), (*offsets_)[0], (*offsets_)[1]});
    dtype_.reset();
    shape_.reset();
    offsets_.reset();
    return true;
  }

  Metadata& metadata_;
  std::vector<Tensor>& tensors_;
  std::string why_;
  At at_ = At::kStart;
  Field field_ = Field::kDtype;
  bool has_metadata_ = false;
  std::string name_;
  std::optional<Dtype> dtype_;
  std::optional<std::vector<uint64_t>> shape_, offsets_;
  std::vector<uint64_t> numbers_;
};

// The bytes of a tensor of this shape, or nothing when they are above kImageBytesMax.
std::optional<uint64_t> TensorBytes(Dtype dtype, const std::vector<uint64_t>& shape) {
  uint64_t bytes = ElementBytes(dtype);
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  for (const uint64_t extent : shape) {
    if (extent > kImageBytesMax / bytes) return std::nullopt;
    bytes *= extent;
  }
  return bytes;
}

// Sorts into file order, checks that the tensors tile the data part, makes offsets absolute.
absl::Status PlaceTensors(ImageHeader& header) {
  std::sort(header.tensors.begin(), header.tensors.end(), [](const Tensor& a, const Tensor& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  uint64_t at = 0;
  for (Tensor& tensor : header.tensors) {
    const auto bytes = TensorBytes(tensor.dtype, tensor.shape);
    if (!bytes || tensor.end < tensor.begin || tensor.end - tensor.begin != *bytes) {
      return Malformed(
          absl::StrCat(Quoted(tensor.name), " has data_offsets that do not fit its shape"));
    }
    if (tensor.begin != at) {
      return Malformed(
          absl::StrCat(Quoted(tensor.name), " overlaps its neighbour or leaves a gap"));
    }
    at = tensor.end;
    tensor.begin += header.data_begin;
    tensor.end += header.data_begin;
  }
  const uint64_t needed = header.data_begin + at;
  if (needed > header.image_bytes) return Truncated(header.image_bytes, needed);
  if (needed < header.image_bytes) {
    return Malformed(absl::StrCat(header.image_bytes - needed, " bytes follow the last tensor"));
  }
  return absl::OkStatus();
}

template <typename List, typename Name>
const std::string* FirstDuplicate(const List& list, Name name) {
  std::vector<const std::string*> names;
  names.reserve(list.size());
  for (const auto& item : list) names.push_back(&name(item));
  std::sort(names.begin(), names.end(), [](auto* a, auto* b) { return *a < *b; });
  const auto twin =
      std::adjacent_find(names.begin(), names.end(), [](auto* a, auto* b) { return *a == *b; });
  return twin == names.end() ? nullptr : *twin;
}

}  // namespace

absl::StatusOr<uint64_t> HeaderBytes(std::span<const std::byte> first, uint64_t image_bytes) {
  constexpr uint64_t kLengthBytes = 8;
  if (image_bytes > kImageBytesMax) return Malformed("it is longer than 1 TiB");
  if (first.size() < kLengthBytes) return Truncated(image_bytes, kLengthBytes);
  uint64_t json_bytes = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) {
    json_bytes |= static_cast<uint64_t>(first[i]) << (8 * i);
  }
  if (json_bytes > kHeaderBytesMax) {
    return Malformed(
        absl::StrCat("it claims a header of ", json_bytes, " bytes, more than ", kHeaderBytesMax));
  }
  if (json_bytes + kLengthBytes > image_bytes)
    return Truncated(image_bytes, json_bytes + kLengthBytes);
  return json_bytes + kLengthBytes;
}

absl::StatusOr<ImageHeader> ParseImageHeader(std::span<const std::byte> prefix,
                                             uint64_t image_bytes) {
  LORRY_ASSIGN_OR_RETURN(const uint64_t header_bytes, HeaderBytes(prefix, image_bytes));
  if (prefix.size() < header_bytes) return Truncated(prefix.size(), header_bytes);
  const std::string_view json(reinterpret_cast<const char*>(prefix.data()) + 8, header_bytes - 8);
  // The JSON library takes a NUL for the end of its input and skips a byte order mark.
  if (json.empty() || json[0] != '{' || json.find('\0') != json.npos) {
    return Malformed("its header does not begin with { or holds a NUL");
  }
  ImageHeader header;
  header.data_begin = header_bytes;
  header.image_bytes = image_bytes;
  HeaderSax sax(&header.metadata, &header.tensors);
  if (!nlohmann::json::sax_parse(json.begin(), json.end(), &sax)) return Malformed(sax.why());
  if (header.tensors.empty()) return Malformed("it holds no tensors");
  const auto* twice =
      FirstDuplicate(header.tensors, [](const Tensor& t) -> auto& { return t.name; });
  if (!twice)
    twice = FirstDuplicate(header.metadata, [](const auto& pair) -> auto& { return pair.first; });
  if (twice) return Malformed(absl::StrCat(Quoted(*twice), " appears twice"));
  LORRY_RETURN_IF_ERROR(PlaceTensors(header));
  return header;
}

}  // namespace lorry::peft
