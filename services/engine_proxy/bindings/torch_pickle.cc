#include "services/engine_proxy/bindings/torch_pickle.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/error.h"
#include "lib/base/strings.h"
#include "lib/peft/image.h"
#include "lib/peft/refusal.h"
#include "services/engine_proxy/bindings/pickle_reader.h"

namespace lorry::proxy {
namespace {

using peft::Dtype;

// One tensor may stand under several names, and one row for many: a lora_A that q, k and v share, or
// all experts of a layer, whose lora_B are their own. That makes up to four times the bytes of a
// call; nobody may make gigabytes of a small one.
constexpr uint64_t kRepeatsMax = 16;
// What torch.save writes of one storage has about 20 values.
constexpr size_t kStorageNodesMax = 256;
// FlattenedTensorMetadata has six. Each entry of the list looks for its own, and all of them may be
// one and the same object.
constexpr size_t kMetadataFieldsMax = 32;
// Sums and products of two such numbers are far from an overflow.
constexpr uint64_t kExtentMax = 1ull << 40;

enum Known : int64_t {
  kOrderedDict,
  kSize,
  kRebuildTensor,
  kRebuildParameter,
  kLoadFromBytes,
  kBucketMetadata,
  kDtypeOf = 100,    // and the Dtype
  kStorageOf = 200,  // and the Dtype
};

struct KnownGlobal {
  std::string_view module, name;
  int64_t known;
};

constexpr int64_t Of(Known base, Dtype dtype) { return base + static_cast<int64_t>(dtype); }

constexpr KnownGlobal kKnown[] = {
    {"collections", "OrderedDict", kOrderedDict},
    {"torch", "Size", kSize},
    {"torch._utils", "_rebuild_tensor_v2", kRebuildTensor},
    {"torch._utils", "_rebuild_parameter", kRebuildParameter},
    {"torch.storage", "_load_from_bytes", kLoadFromBytes},
    {"sglang.srt.weight_sync.tensor_bucket", "FlattenedTensorMetadata", kBucketMetadata},
    {"torch", "float32", Of(kDtypeOf, Dtype::kF32)},
    {"torch", "float16", Of(kDtypeOf, Dtype::kF16)},
    {"torch", "bfloat16", Of(kDtypeOf, Dtype::kBf16)},
    {"torch", "float64", Of(kDtypeOf, Dtype::kF64)},
    {"torch", "uint8", Of(kDtypeOf, Dtype::kU8)},
    {"torch", "FloatStorage", Of(kStorageOf, Dtype::kF32)},
    {"torch", "HalfStorage", Of(kStorageOf, Dtype::kF16)},
    {"torch", "BFloat16Storage", Of(kStorageOf, Dtype::kBf16)},
    {"torch", "DoubleStorage", Of(kStorageOf, Dtype::kF64)},
    {"torch", "ByteStorage", Of(kStorageOf, Dtype::kU8)},
};

// What a pickle of tensors begins with whose bytes are not in it.
struct Elsewhere {
  std::string_view module, name, where;
};
constexpr std::string_view kOnGpu =
    "lie on a GPU of the trainer's, and the call has only handles of them";
constexpr std::string_view kShared =
    "lie in memory that the trainer shares with its own children, and the call has only handles of "
    "it";
constexpr Elsewhere kElsewhere[] = {
    {"torch.multiprocessing.reductions", "rebuild_cuda_tensor", kOnGpu},
    {"sglang.srt.utils.patch_torch", "_rebuild_cuda_tensor_modified", kOnGpu},
    {"sglang.srt.utils.patch_torch", "_rebuild_npu_tensor_modified", kOnGpu},
    {"torch_npu.multiprocessing.reductions", "rebuild_npu_tensor", kOnGpu},
    {"torch.multiprocessing.reductions", "rebuild_tensor", kShared},
    {"torch.multiprocessing.reductions", "rebuild_storage_fd", kShared},
    {"torch.multiprocessing.reductions", "rebuild_storage_filename", kShared},
    {"multiprocessing.resource_sharer", "DupFd", kShared},
};

absl::StatusOr<int64_t> FindGlobal(std::string_view module, std::string_view name) {
  for (const KnownGlobal& known : kKnown) {
    if (known.module == module && known.name == name) return known.known;
  }
  for (const Elsewhere& elsewhere : kElsewhere) {
    if (elsewhere.module != module || elsewhere.name != name) continue;
    return Error(
        absl::StatusCode::kFailedPrecondition, "TENSORS_ELSEWHERE",
        absl::StrCat("the tensors ", ToAbsl(elsewhere.where), " (", ToAbsl(name),
                     "); send what pickle.dumps makes of tensors on the CPU, name a directory to "
                     "/load_lora_adapter, or publish with Lorry's client"));
  }
  return NoTensors(absl::StrCat("the pickle asks for ", peft::Quoted(module), " ",
                                peft::Quoted(name),
                                ", which dense tensors are not made of; nothing of it was run"));
}

// What torch.save wrote of one tensor's memory.
struct Storage {
  Dtype dtype = Dtype::kF32;
  std::span<const std::byte> data;
};

absl::Status BadStorage(std::string_view what) {
  return NoTensors(absl::StrCat("the pickle has a storage with ", ToAbsl(what),
                                ", which torch.save writes of none"));
}

// As torch writes a storage within a pickle, by its older format: a magic number, a protocol, what
// machine it was, the storage without its bytes, a list of its key, its length, its bytes.
absl::StatusOr<Storage> ReadStorage(std::string_view bytes) {
  constexpr std::string_view kMagic("\x80\x02\x8a\nl\xfc\x9c\x46\xf9 j\xa8P\x19.", 15);
  constexpr int64_t kProtocol = 1001;
  if (!bytes.starts_with(kMagic)) return BadStorage("another first number");
  bytes.remove_prefix(kMagic.size());
  LORRY_ASSIGN_OR_RETURN(const Pickle protocol, ReadPickle(bytes, FindGlobal, kStorageNodesMax));
  if (protocol.at(protocol.root).number != kProtocol) return BadStorage("another protocol");
  LORRY_ASSIGN_OR_RETURN(const Pickle machine, ReadPickle(bytes, FindGlobal, kStorageNodesMax));
  const std::vector<PickleRef>& facts = machine.at(machine.root).items;
  for (size_t i = 0; i + 1 < facts.size(); i += 2) {
    if (machine.at(facts[i]).text == "little_endian" && machine.at(facts[i + 1]).number != 1)
      return BadStorage("bytes of a big-endian machine");
  }
  LORRY_ASSIGN_OR_RETURN(const Pickle described, ReadPickle(bytes, FindGlobal, kStorageNodesMax));
  const PickleNode& root = described.at(described.root);
  if (root.kind != PickleKind::kPersistent) return BadStorage("no description");
  // ("storage", type, key, device, length, no view)
  const std::vector<PickleRef>& parts = described.at(root.arguments).items;
  if (parts.size() != 6 || described.at(parts[5]).kind != PickleKind::kNone)
    return BadStorage("another description");
  const PickleNode& type = described.at(parts[1]);
  if (type.kind != PickleKind::kGlobal || type.number < kStorageOf)
    return BadStorage("another type");
  Storage storage{.dtype = static_cast<Dtype>(type.number - kStorageOf), .data = {}};
  LORRY_RETURN_IF_ERROR(ReadPickle(bytes, FindGlobal, kStorageNodesMax).status());
  const uint64_t item = peft::ElementBytes(storage.dtype);
  const auto length = static_cast<uint64_t>(described.at(parts[4]).number);
  uint64_t said = 0;
  if (bytes.size() < sizeof(said)) return BadStorage("no length");
  std::memcpy(&said, bytes.data(), sizeof(said));
  bytes.remove_prefix(sizeof(said));
  if (said != length || bytes.size() % item != 0 || bytes.size() / item != length)
    return BadStorage("more or fewer bytes than it says");
  storage.data = std::as_bytes(std::span(bytes.data(), bytes.size()));
  return storage;
}

// The product of the extents, or nothing where it is absurd.
std::optional<uint64_t> Elements(const std::vector<uint64_t>& shape) {
  uint64_t elements = 1;
  for (const uint64_t extent : shape) {
    if (extent != 0 && elements > kExtentMax / extent) return std::nullopt;
    elements *= extent;
  }
  return elements;
}

std::vector<uint64_t> Packed(const std::vector<uint64_t>& shape) {
  std::vector<uint64_t> strides(shape.size(), 1);
  for (size_t i = shape.size(); i > 1; --i) strides[i - 2] = strides[i - 1] * shape[i - 1];
  return strides;
}

class Tensors {
 public:
  Tensors(const Pickle& pickle, uint64_t bytes_max, uint64_t pickle_bytes)
      : pickle_(pickle), bytes_max_(bytes_max), repeats_max_(pickle_bytes * kRepeatsMax) {}

  absl::StatusOr<std::vector<SentTensor>> OfDict() {
    LORRY_ASSIGN_OR_RETURN(const auto* items, DictAt(pickle_.root));
    std::vector<SentTensor> tensors;
    for (size_t i = 0; i + 1 < items->size(); i += 2) {
      const PickleNode& name = pickle_.at((*items)[i]);
      if (name.kind != PickleKind::kText)
        return NoTensors("the pickle's dict has a key of no text");
      LORRY_ASSIGN_OR_RETURN(SentTensor tensor, TensorAt((*items)[i + 1], name.text));
      LORRY_RETURN_IF_ERROR(Take(std::move(tensor), tensors));
    }
    return tensors;
  }

  absl::StatusOr<std::vector<SentTensor>> OfBucket() {
    LORRY_ASSIGN_OR_RETURN(const auto* items, DictAt(pickle_.root));
    const PickleNode* metadata = Value(*items, "metadata");
    const std::optional<PickleRef> flat_at = Find(*items, "flattened_tensor");
    if (metadata == nullptr || metadata->kind != PickleKind::kList || !flat_at.has_value()) {
      return NoTensors(
          "load_format is flattened_bucket, and the pickle is no dict of flattened_tensor and "
          "metadata");
    }
    LORRY_ASSIGN_OR_RETURN(const SentTensor flat, TensorAt(*flat_at, "flattened_tensor"));
    if (flat.dtype != Dtype::kU8 || flat.shape.size() != 1 || flat.strides[0] != 1)
      return NoTensors("flattened_tensor is no row of bytes (uint8)");
    std::vector<SentTensor> tensors;
    for (const PickleRef ref : metadata->items) {
      LORRY_ASSIGN_OR_RETURN(SentTensor tensor, BucketTensor(pickle_.at(ref), flat));
      LORRY_RETURN_IF_ERROR(Take(std::move(tensor), tensors));
    }
    return tensors;
  }

 private:
  absl::Status Take(SentTensor tensor, std::vector<SentTensor>& tensors) {
    bytes_ += tensor.bytes();
    if (tensors.size() >= peft::kTensorsMax || bytes_ > repeats_max_)
      return NoTensors(
          "the pickle has more tensors, or repeats its bytes more often, than adapters do");
    if (bytes_ > bytes_max_) {
      return Error(absl::StatusCode::kResourceExhausted, "DIRECTORY_TOO_LARGE",
                   absl::StrCat("the tensors have more than ", bytes_max_,
                                " bytes; --bindings-max-bytes allows more"));
    }
    tensors.push_back(std::move(tensor));
    return absl::OkStatus();
  }

  // Keys and values of a dict, or of an OrderedDict.
  absl::StatusOr<const std::vector<PickleRef>*> DictAt(PickleRef ref) const {
    const PickleNode& node = pickle_.at(ref);
    if (node.kind == PickleKind::kDict || IsCallOf(node, kOrderedDict)) return &node.items;
    return NoTensors("the pickle is no dict");
  }

  bool IsCallOf(const PickleNode& node, Known known) const {
    return node.kind == PickleKind::kCall && pickle_.at(node.callee).number == known;
  }
  const std::vector<PickleRef>& ArgumentsOf(const PickleNode& call) const {
    return pickle_.at(call.arguments).items;
  }

  std::optional<PickleRef> Find(const std::vector<PickleRef>& items, std::string_view key) const {
    for (size_t i = 0; i + 1 < items.size(); i += 2) {
      const PickleNode& node = pickle_.at(items[i]);
      if (node.kind == PickleKind::kText && node.text == key) return items[i + 1];
    }
    return std::nullopt;
  }
  const PickleNode* Value(const std::vector<PickleRef>& items, std::string_view key) const {
    const std::optional<PickleRef> ref = Find(items, key);
    return ref.has_value() ? &pickle_.at(*ref) : nullptr;
  }

  // _rebuild_tensor_v2(storage, offset, size, stride, requires_grad, hooks[, metadata]), perhaps
  // within _rebuild_parameter(tensor, requires_grad, hooks).
  absl::StatusOr<SentTensor> TensorAt(PickleRef ref, std::string_view name) {
    const auto wrong = [&](std::string_view what) {
      return NoTensors(absl::StrCat(peft::Quoted(name), " is ", ToAbsl(what)));
    };
    const PickleNode* node = &pickle_.at(ref);
    if (IsCallOf(*node, kRebuildParameter) && !ArgumentsOf(*node).empty())
      node = &pickle_.at(ArgumentsOf(*node)[0]);
    if (!IsCallOf(*node, kRebuildTensor)) return wrong("no dense tensor");
    const std::vector<PickleRef>& arguments = ArgumentsOf(*node);
    const bool is_plain =
        arguments.size() == 6 ||
        (arguments.size() == 7 && pickle_.at(arguments[6]).kind == PickleKind::kNone);
    if (!is_plain) return wrong("a tensor of another kind than a dense one");
    LORRY_ASSIGN_OR_RETURN(const Storage* storage, StorageAt(arguments[0]));
    const auto offset = Extent(pickle_.at(arguments[1]));
    auto shape = Extents(arguments[2]), strides = Extents(arguments[3]);
    if (!offset || !shape || !strides || shape->size() != strides->size())
      return wrong("a tensor with a shape or strides that are none");
    const std::optional<uint64_t> elements = Elements(*shape);
    if (!elements.has_value()) return wrong("absurdly large");
    const uint64_t item = peft::ElementBytes(storage->dtype);
    // One past the last element that it reaches: at most 8 products of 2^80 and less.
    unsigned __int128 end = *offset;
    for (size_t i = 0; i < shape->size() && *elements > 0; ++i)
      end += static_cast<unsigned __int128>((*shape)[i] - 1) * (*strides)[i];
    end += *elements > 0 ? 1 : 0;
    if (end > storage->data.size() / item) return wrong("a tensor that reaches beyond its storage");
    return SentTensor{std::string(name), storage->dtype, *std::move(shape), *std::move(strides),
                      storage->data.subspan(*offset * item)};
  }

  absl::StatusOr<const Storage*> StorageAt(PickleRef ref) {
    const PickleNode& node = pickle_.at(ref);
    if (!IsCallOf(node, kLoadFromBytes) || ArgumentsOf(node).size() != 1 ||
        pickle_.at(ArgumentsOf(node)[0]).kind != PickleKind::kBytes) {
      return BadStorage("no bytes");
    }
    // By its bytes, so that none are read twice, however often they are named.
    const PickleRef bytes = ArgumentsOf(node)[0];
    const auto known = storages_.find(bytes);
    if (known != storages_.end()) return &known->second;
    LORRY_ASSIGN_OR_RETURN(const Storage storage, ReadStorage(pickle_.at(bytes).text));
    return &storages_.emplace(bytes, storage).first->second;
  }

  // FlattenedTensorMetadata, whose fields came as its state: where in the row of bytes it lies.
  absl::StatusOr<SentTensor> BucketTensor(const PickleNode& node, const SentTensor& flat) const {
    if (!IsCallOf(node, kBucketMetadata) || node.state == kNoPickleRef)
      return NoTensors("metadata is no list of FlattenedTensorMetadata");
    const std::vector<PickleRef>& fields = pickle_.at(node.state).items;
    if (fields.size() > 2 * kMetadataFieldsMax)
      return NoTensors("metadata has more fields than FlattenedTensorMetadata");
    const PickleNode *name = Value(fields, "name"), *dtype = Value(fields, "dtype");
    const PickleNode *begin = Value(fields, "start_idx"), *end = Value(fields, "end_idx");
    const std::optional<PickleRef> shape_at = Find(fields, "shape");
    if (name == nullptr || dtype == nullptr || begin == nullptr || end == nullptr || !shape_at)
      return NoTensors("metadata lacks name, shape, dtype, start_idx or end_idx");
    const auto from = Extent(*begin), to = Extent(*end);
    auto shape = Extents(*shape_at);
    const bool is_dtype = dtype->kind == PickleKind::kGlobal && dtype->number >= kDtypeOf &&
                          dtype->number < kStorageOf;
    if (name->kind != PickleKind::kText || !is_dtype || !from || !to || !shape)
      return NoTensors("metadata has a field of another type");
    SentTensor tensor{.name = std::string(name->text),
                      .dtype = static_cast<Dtype>(dtype->number - kDtypeOf),
                      .shape = *std::move(shape),
                      .strides = {},
                      .data = {}};
    tensor.strides = Packed(tensor.shape);
    const bool fits = Elements(tensor.shape).has_value() && *from <= *to && *to <= flat.shape[0] &&
                      *to - *from == tensor.bytes();
    if (!fits)
      return NoTensors(
          absl::StrCat(peft::Quoted(tensor.name), " does not lie in flattened_tensor"));
    tensor.data = flat.data.subspan(*from, *to - *from);
    return tensor;
  }

  static std::optional<uint64_t> Extent(const PickleNode& node) {
    // What is negative is far above it.
    const bool is_extent =
        node.kind == PickleKind::kInt && static_cast<uint64_t>(node.number) <= kExtentMax;
    if (!is_extent) return std::nullopt;
    return static_cast<uint64_t>(node.number);
  }
  // Of a tuple, or of torch.Size of one.
  std::optional<std::vector<uint64_t>> Extents(PickleRef ref) const {
    const PickleNode* node = &pickle_.at(ref);
    if (IsCallOf(*node, kSize) && ArgumentsOf(*node).size() == 1)
      node = &pickle_.at(ArgumentsOf(*node)[0]);
    if (node->kind != PickleKind::kTuple || node->items.size() > peft::kTensorDimsMax)
      return std::nullopt;
    std::vector<uint64_t> extents;
    for (const PickleRef item : node->items) {
      const std::optional<uint64_t> extent = Extent(pickle_.at(item));
      if (!extent.has_value()) return std::nullopt;
      extents.push_back(*extent);
    }
    return extents;
  }

  const Pickle& pickle_;
  const uint64_t bytes_max_, repeats_max_;
  uint64_t bytes_ = 0;
  std::unordered_map<PickleRef, Storage> storages_;
};

}  // namespace

uint64_t SentTensor::bytes() const { return *Elements(shape) * peft::ElementBytes(dtype); }

absl::StatusOr<std::vector<SentTensor>> ReadTorchPickle(std::string_view pickle,
                                                        TensorLayout layout, uint64_t bytes_max) {
  std::string_view rest = pickle;
  LORRY_ASSIGN_OR_RETURN(const Pickle read, ReadPickle(rest, FindGlobal));
  if (!rest.empty()) return NoTensors("there is something behind the pickle's end");
  Tensors tensors(read, bytes_max, pickle.size());
  return layout == TensorLayout::kFlatBucket ? tensors.OfBucket() : tensors.OfDict();
}

void CopyTensor(const SentTensor& tensor, std::span<std::byte> to) {
  const std::vector<uint64_t> packed = Packed(tensor.shape);
  // Behind `outer` all lies as it is to lie: those are copied at once.
  size_t outer = tensor.shape.size();
  while (outer > 0 &&
         (tensor.strides[outer - 1] == packed[outer - 1] || tensor.shape[outer - 1] == 1))
    --outer;
  uint64_t block = peft::ElementBytes(tensor.dtype);
  const uint64_t item = block;
  for (size_t i = outer; i < tensor.shape.size(); ++i) block *= tensor.shape[i];
  std::vector<uint64_t> index(outer, 0);
  uint64_t from = 0;
  for (uint64_t done = 0; done < to.size(); done += block) {
    std::memcpy(to.data() + done, tensor.data.data() + from * item, block);
    for (size_t i = outer; i > 0; --i) {
      from += tensor.strides[i - 1];
      if (++index[i - 1] < tensor.shape[i - 1]) break;
      from -= tensor.strides[i - 1] * tensor.shape[i - 1];
      index[i - 1] = 0;
    }
  }
}

}  // namespace lorry::proxy
