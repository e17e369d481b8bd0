#include "services/engine_proxy/bindings/tensor_call.h"

#include <openssl/evp.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/base/digest.h"
#include "lib/base/error.h"
#include "lib/base/strings.h"
#include "lib/peft/image.h"
#include "lib/peft/json.h"
#include "lib/peft/refusal.h"
#include "services/engine_proxy/bindings/torch_pickle.h"
#include "services/engine_proxy/door/json_splice.h"

namespace lorry::proxy {
namespace {

// Of one engine; each has its own copy in the call.
constexpr size_t kRanksMax = 1024;
// A checksum and its name for as many tensors as an image may have.
constexpr size_t kChecksumsBytesMax = 32u << 20;

absl::Status Invalid(std::string message) {
  return Error(absl::StatusCode::kInvalidArgument, "TENSORS_INVALID", message);
}

// What the call carries, as ranges of its body.
struct Call {
  std::vector<door::JsonRange> ranks;  // texts, one for each rank of the engine
  door::JsonRange config;
  std::optional<door::JsonRange> checksums;
  TensorLayout layout = TensorLayout::kDict;
};

bool IsGiven(const door::JsonField* field) {
  return field != nullptr && field->value.kind != door::JsonKind::kNull;
}

absl::StatusOr<TensorLayout> LayoutOf(const door::PaddedBody& body, const door::JsonField* format) {
  if (!IsGiven(format)) return TensorLayout::kDict;
  if (body.Text(format->value) == "\"flattened_bucket\"") return TensorLayout::kFlatBucket;
  return Invalid("load_format is neither null nor flattened_bucket; leave it out");
}

// SGLang until 0.5.16 takes one text for all ranks, later ones a list; a client of both sends both.
absl::StatusOr<std::vector<door::JsonRange>> RanksOf(const door::PaddedBody& body,
                                                     const door::JsonField* list,
                                                     const door::JsonField* one) {
  std::vector<door::JsonRange> ranks;
  if (IsGiven(list)) {
    LORRY_ASSIGN_OR_RETURN(ranks, door::ArrayElements(body, list->value, kRanksMax));
  }
  if (IsGiven(one)) ranks.push_back(one->value);
  const bool are_texts = std::ranges::all_of(
      ranks, [](const door::JsonRange& rank) { return rank.kind == door::JsonKind::kString; });
  if (ranks.empty() || !are_texts) {
    return Invalid(
        "serialized_named_tensors must be a list of texts, one for each rank, or "
        "serialized_tensors a text");
  }
  return ranks;
}

absl::StatusOr<Call> ReadCall(const door::PaddedBody& body) {
  LORRY_ASSIGN_OR_RETURN(const std::vector<door::JsonField> fields, door::ObjectFields(body));
  Call call;
  LORRY_ASSIGN_OR_RETURN(call.layout, LayoutOf(body, door::FindField(fields, "load_format")));
  LORRY_ASSIGN_OR_RETURN(call.ranks,
                         RanksOf(body, door::FindField(fields, "serialized_named_tensors"),
                                 door::FindField(fields, "serialized_tensors")));
  const door::JsonField* config = door::FindField(fields, "config_dict");
  if (config == nullptr || config->value.kind != door::JsonKind::kObject)
    return Invalid("config_dict must be an object, as in adapter_config.json");
  call.config = config->value;
  const door::JsonField* tokens = door::FindField(fields, "added_tokens_config");
  if (IsGiven(tokens)) {
    if (tokens->value.kind != door::JsonKind::kObject)
      return Invalid("added_tokens_config is no object");
    LORRY_ASSIGN_OR_RETURN(const auto added, door::ObjectFields(body, tokens->value));
    if (!added.empty()) {
      return Error(
          absl::StatusCode::kInvalidArgument, "EMBEDDING_UNSUPPORTED",
          "added_tokens_config names tokens, which no engine adds to its vocabulary; train "
          "without them, or sync merged weights");
    }
  }
  const door::JsonField* checksums = door::FindField(fields, "expected_checksums");
  if (IsGiven(checksums)) call.checksums = checksums->value;
  return call;
}

// Strict: no blanks, and fillers at the end alone.
absl::StatusOr<std::string> DecodeBase64(std::string_view text) {
  constexpr size_t kStepBytes = 1u << 20;  // whole quadruples, far below what an int counts
  const size_t fill = text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
  const bool is_whole = text.size() % 4 == 0 && text.find('=') >= text.size() - fill;
  std::string bytes(is_whole ? text.size() / 4 * 3 : 0, '\0');
  auto* to = reinterpret_cast<unsigned char*>(bytes.data());
  bool is_right = is_whole;
  for (size_t at = 0; is_right && at < text.size(); at += kStepBytes) {
    const std::string_view step = text.substr(at, kStepBytes);
    const int made =
        EVP_DecodeBlock(to + at / 4 * 3, reinterpret_cast<const unsigned char*>(step.data()),
                        static_cast<int>(step.size()));
    is_right = made >= 0 && static_cast<size_t>(made) == step.size() / 4 * 3;
  }
  if (!is_right) return Invalid("the tensors are no base64 without line breaks");
  bytes.resize(bytes.size() - fill);
  return bytes;
}

// One rank's tensors and the memory that they lie in.
struct Rank {
  std::string pickle;
  std::vector<SentTensor> tensors;
};

absl::Status ReadRank(std::string_view quoted, TensorLayout layout, uint64_t bytes_max,
                      Rank* rank) {
  const std::string_view text = quoted.substr(1, quoted.size() - 2);
  LORRY_ASSIGN_OR_RETURN(rank->pickle, DecodeBase64(text));
  LORRY_ASSIGN_OR_RETURN(rank->tensors, ReadTorchPickle(rank->pickle, layout, bytes_max));
  return absl::OkStatus();
}

std::vector<std::byte> BytesOf(const SentTensor& tensor) {
  std::vector<std::byte> bytes(tensor.bytes());
  CopyTensor(tensor, bytes);
  return bytes;
}

bool IsSame(const SentTensor& a, const SentTensor& b) {
  return a.name == b.name && a.dtype == b.dtype && a.shape == b.shape && BytesOf(a) == BytesOf(b);
}

// Every rank cuts its share out of the whole adapter: SGLang's LoRA has each sent all of it.
absl::Status CheckRanks(const door::PaddedBody& body, const Call& call, uint64_t bytes_max,
                        const Rank& first) {
  for (size_t i = 1; i < call.ranks.size(); ++i) {
    if (body.Text(call.ranks[i]) == body.Text(call.ranks[0])) continue;
    Rank other;
    LORRY_RETURN_IF_ERROR(ReadRank(body.Text(call.ranks[i]), call.layout, bytes_max, &other));
    const bool is_same = std::ranges::equal(first.tensors, other.tensors, IsSame);
    if (!is_same) {
      return Invalid(absl::StrCat("copy ", i,
                                  " has other tensors than copy 0; send every rank the whole "
                                  "adapter, and not its shard"));
    }
  }
  return absl::OkStatus();
}

// Of each tensor's bytes under its name as it was sent, as SGLang compares them.
absl::Status CheckSums(std::string_view text, const std::vector<SentTensor>& tensors) {
  if (text.size() > kChecksumsBytesMax) return Invalid("expected_checksums is too large");
  const nlohmann::json sums = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!sums.is_object()) return Invalid("expected_checksums is no object");
  for (const SentTensor& tensor : tensors) {
    const auto sum = sums.find(tensor.name);
    if (sum == sums.end()) {
      return Invalid(absl::StrCat("expected_checksums has none of ", peft::Quoted(tensor.name)));
    }
    if (*sum != ToHex(HashSha256(BytesOf(tensor)))) {
      return Invalid(absl::StrCat(peft::Quoted(tensor.name),
                                  " does not have its expected checksum; send it again"));
    }
  }
  if (sums.size() != tensors.size())
    return Invalid("expected_checksums has names of which there is no tensor");
  return absl::OkStatus();
}

// As PEFT's save_pretrained writes them to a file.
absl::StatusOr<ForeignAdapter> LayOut(const std::vector<SentTensor>& tensors,
                                      std::string_view config_json) {
  std::vector<peft::TensorSpec> specs;
  for (const SentTensor& tensor : tensors)
    specs.push_back({tensor.name, tensor.dtype, tensor.shape});
  LORRY_ASSIGN_OR_RETURN(const peft::ImageLayout layout,
                         peft::LayOutImage(std::move(specs), peft::Metadata{{"format", "pt"}}));
  ForeignAdapter made;
  made.config_json = std::string(config_json);
  made.image_bytes = layout.header.image_bytes;
  LORRY_ASSIGN_OR_RETURN(made.memory, transfer::Arena::Create(made.image_bytes));
  const std::span<std::byte> image = made.memory->bytes();
  std::memcpy(image.data(), layout.header_bytes.data(), layout.header_bytes.size());
  std::vector<const SentTensor*> by_name;
  for (const SentTensor& tensor : tensors) by_name.push_back(&tensor);
  std::ranges::sort(by_name, {}, &SentTensor::name);
  for (const peft::Tensor& place : layout.header.tensors) {
    const auto it = std::ranges::lower_bound(by_name, place.name, {}, &SentTensor::name);
    CopyTensor(**it, image.subspan(place.begin, place.end - place.begin));
  }
  return made;
}

}  // namespace

absl::StatusOr<ForeignAdapter> ReadTensorCall(const std::string& body_text, uint64_t bytes_max) {
  const door::PaddedBody body = door::PaddedBody::Lent(body_text);
  LORRY_ASSIGN_OR_RETURN(const Call call, ReadCall(body));
  const std::string_view config = body.Text(call.config);
  if (config.size() > peft::kConfigBytesMax) {
    return Error(absl::StatusCode::kInvalidArgument, "DIRECTORY_TOO_LARGE",
                 absl::StrCat("config_dict has ", config.size(), " bytes, more than ",
                              peft::kConfigBytesMax, "; it is no adapter's config"));
  }
  Rank first;
  LORRY_RETURN_IF_ERROR(ReadRank(body.Text(call.ranks[0]), call.layout, bytes_max, &first));
  LORRY_RETURN_IF_ERROR(CheckRanks(body, call, bytes_max, first));
  if (call.checksums.has_value())
    LORRY_RETURN_IF_ERROR(CheckSums(body.Text(*call.checksums), first.tensors));
  return LayOut(first.tensors, config);
}

}  // namespace lorry::proxy
