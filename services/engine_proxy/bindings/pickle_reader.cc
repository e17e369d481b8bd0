#include "services/engine_proxy/bindings/pickle_reader.h"

#include <cstddef>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/error.h"
#include "lib/base/strings.h"

namespace lorry::proxy {
namespace {

// The opcodes, by the names of Python's pickletools.
enum Op : uint8_t {
  kMark = '(',
  kStop = '.',
  kBinInt = 'J',
  kBinInt1 = 'K',
  kBinInt2 = 'M',
  kNoneOp = 'N',
  kBinPersId = 'Q',
  kReduce = 'R',
  kBinUnicode = 'X',
  kAppend = 'a',
  kBuild = 'b',
  kGlobalOp = 'c',
  kAppends = 'e',
  kBinGet = 'h',
  kLongBinGet = 'j',
  kBinPut = 'q',
  kLongBinPut = 'r',
  kSetItem = 's',
  kTupleOp = 't',
  kSetItems = 'u',
  kEmptyList = ']',
  kEmptyTuple = ')',
  kEmptyDict = '}',
  kBinBytes = 'B',
  kShortBinBytes = 'C',
  kProto = 0x80,
  kNewObj = 0x81,
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kNewTrue = 0x88,
  kNewFalse = 0x89,
  kLong1 = 0x8a,
  kShortBinUnicode = 0x8c,
  kBinUnicode8 = 0x8d,
  kBinBytes8 = 0x8e,
  kStackGlobal = 0x93,
  kMemoize = 0x94,
  kFrame = 0x95,
};

// Of a dict's items, a call's arguments and a shape, and as many again.
constexpr size_t kMarksMax = 6;

class Reader {
 public:
  Reader(std::string_view bytes, const FindPickleGlobal& find, size_t nodes_max)
      : bytes_(bytes), find_(find), nodes_max_(nodes_max) {}

  absl::Status Read() {
    while (!done_) {
      const std::optional<uint64_t> op = Number(1);
      if (!op.has_value() || !Do(static_cast<uint8_t>(*op))) return why_;
    }
    return absl::OkStatus();
  }
  Pickle Result() { return {std::move(nodes_), stack_.back()}; }
  size_t used() const { return at_; }

 private:
  // Each of these is false where the pickle is none, or not one of tensors: see Why.
  bool Do(uint8_t op) {
    switch (op) {
      case kProto:
        return Version();
      case kFrame:
        return Number(8).has_value();
      case kStop:
        done_ = true;
        return (marks_.empty() && stack_.size() == 1) || Fail("an end that leaves not one value");
      case kMark:
        marks_.push_back(stack_.size());
        return marks_.size() <= kMarksMax || Fail("marks within marks");
      case kBinPut:
        return Put(Number(1));
      case kLongBinPut:
        return Put(Number(4));
      case kMemoize:
        return Put(memo_.size());
      case kBinGet:
        return Get(Number(1));
      case kLongBinGet:
        return Get(Number(4));
      case kGlobalOp:
        return GlobalOfLines();
      case kStackGlobal:
        return StackGlobal();
      default:
        return DoValue(op);
    }
  }

  bool DoValue(uint8_t op) {
    switch (op) {
      case kNoneOp:
        return Push({.kind = PickleKind::kNone});
      case kNewTrue:
      case kNewFalse:
        return Push({.kind = PickleKind::kBool, .number = op == kNewTrue ? 1 : 0});
      case kBinInt1:
        return Whole(1, /*is_signed=*/false);
      case kBinInt2:
        return Whole(2, /*is_signed=*/false);
      case kBinInt:
        return Whole(4, /*is_signed=*/true);
      case kLong1:
        return Whole(Number(1), /*is_signed=*/true);
      case kShortBinUnicode:
        return Text(PickleKind::kText, Number(1));
      case kBinUnicode:
        return Text(PickleKind::kText, Number(4));
      case kBinUnicode8:
        return Text(PickleKind::kText, Number(8));
      case kShortBinBytes:
        return Text(PickleKind::kBytes, Number(1));
      case kBinBytes:
        return Text(PickleKind::kBytes, Number(4));
      case kBinBytes8:
        return Text(PickleKind::kBytes, Number(8));
      default:
        return DoContainer(op);
    }
  }

  bool DoContainer(uint8_t op) {
    switch (op) {
      case kEmptyTuple:
        return Push({.kind = PickleKind::kTuple});
      case kEmptyList:
        return Push({.kind = PickleKind::kList});
      case kEmptyDict:
        return Push({.kind = PickleKind::kDict});
      case kTuple1:
      case kTuple2:
      case kTuple3:
        return Tuple(PopSome(1u + op - kTuple1));
      case kTupleOp:
        return Tuple(PopToMark());
      case kAppend:
        return Append(PopSome(1));
      case kAppends:
        return Append(PopToMark());
      case kSetItem:
        return SetItems(PopSome(2));
      case kSetItems:
        return SetItems(PopToMark());
      case kReduce:
      case kNewObj:
        return Call(PopSome(2));
      case kBuild:
        return Build(PopSome(1));
      case kBinPersId:
        return Persistent(PopSome(1));
      default:
        return Fail(absl::StrCat("the opcode 0x", absl::Hex(op, absl::kZeroPad2)));
    }
  }

  using Some = std::optional<std::vector<PickleRef>>;

  bool Version() {
    const std::optional<uint64_t> version = Number(1);
    return version.has_value() && (*version <= 5 || Fail("a protocol after 5"));
  }

  bool Whole(std::optional<uint64_t> width, bool is_signed) {
    if (!width.has_value()) return false;
    if (*width > 8) return Fail("a number of more than 64 bits");
    const std::optional<uint64_t> read = Number(*width);
    if (!read.has_value()) return false;
    uint64_t value = *read;
    const bool is_negative = is_signed && *width > 0 && ((value >> (*width * 8 - 1)) & 1) != 0;
    if (is_negative && *width < 8) value |= ~uint64_t{0} << (*width * 8);
    return Push({.kind = PickleKind::kInt, .number = static_cast<int64_t>(value)});
  }

  bool Text(PickleKind kind, std::optional<uint64_t> length) {
    if (!length.has_value()) return false;
    if (*length > bytes_.size() - at_) return Fail("more bytes than there are");
    const std::string_view text = bytes_.substr(at_, *length);
    at_ += *length;
    return Push({.kind = kind, .text = text});
  }

  bool Tuple(Some items) {
    return items.has_value() && Push({.kind = PickleKind::kTuple, .items = *std::move(items)});
  }

  bool Append(Some items) {
    if (!items.has_value()) return false;
    PickleNode* list = Top(PickleKind::kList, PickleKind::kList);
    if (list == nullptr) return Fail("items of what is no list");
    list->items.insert(list->items.end(), items->begin(), items->end());
    return true;
  }

  bool SetItems(Some items) {
    if (!items.has_value()) return false;
    PickleNode* dict = Top(PickleKind::kDict, PickleKind::kCall);
    if (dict == nullptr || items->size() % 2 != 0) return Fail("items of what is no dict");
    dict->items.insert(dict->items.end(), items->begin(), items->end());
    return true;
  }

  bool Call(Some parts) {
    if (!parts.has_value()) return false;
    const auto [callee, arguments] = std::pair((*parts)[0], (*parts)[1]);
    if (nodes_[callee].kind != PickleKind::kGlobal || nodes_[arguments].kind != PickleKind::kTuple)
      return Fail("a call of what is nothing to call");
    return Push({.kind = PickleKind::kCall, .callee = callee, .arguments = arguments});
  }

  bool Build(Some state) {
    if (!state.has_value()) return false;
    PickleNode* call = Top(PickleKind::kCall, PickleKind::kCall);
    if (call == nullptr || call->state != kNoPickleRef) return Fail("a state of what has none");
    call->state = state->front();
    return true;
  }

  bool Persistent(Some id) {
    return id.has_value() && Push({.kind = PickleKind::kPersistent, .arguments = id->front()});
  }

  bool GlobalOfLines() {
    const std::optional<std::string_view> module = Line();
    return Global(module, Line());
  }

  bool StackGlobal() {
    const Some parts = PopSome(2);
    if (!parts.has_value()) return false;
    const PickleNode& module = nodes_[parts->front()];
    const PickleNode& name = nodes_[parts->back()];
    if (module.kind != PickleKind::kText || name.kind != PickleKind::kText)
      return Fail("an import without a name");
    return Global(module.text, name.text);
  }

  bool Global(std::optional<std::string_view> module, std::optional<std::string_view> name) {
    if (!module.has_value() || !name.has_value()) return false;
    const absl::StatusOr<int64_t> known = find_(*module, *name);
    if (!known.ok()) {
      why_ = known.status();
      return false;
    }
    return Push({.kind = PickleKind::kGlobal, .number = *known});
  }

  // Picklers count what they remember from 0, so that nobody has to keep room for a number that is
  // only claimed.
  bool Put(std::optional<uint64_t> place) {
    if (!place.has_value()) return false;
    if (stack_.empty() || *place > memo_.size() || *place >= nodes_max_)
      return Fail("a memo out of its order");
    if (*place == memo_.size()) memo_.push_back(stack_.back());
    memo_[*place] = stack_.back();
    return true;
  }
  bool Get(std::optional<uint64_t> place) {
    if (!place.has_value()) return false;
    if (*place >= memo_.size()) return Fail("what its memo does not have");
    stack_.push_back(memo_[*place]);
    return stack_.size() <= nodes_max_ || Fail("more values than any adapter has");
  }

  bool Push(PickleNode node) {
    if (nodes_.size() >= nodes_max_) return Fail("more values than any adapter has");
    stack_.push_back(static_cast<PickleRef>(nodes_.size()));
    nodes_.push_back(std::move(node));
    return true;
  }

  // Nothing below the last mark is anybody's to take.
  Some PopSome(size_t count) {
    const size_t floor = marks_.empty() ? 0 : marks_.back();
    if (stack_.size() - floor < count) {
      Fail("an empty stack");
      return std::nullopt;
    }
    return Pop(stack_.size() - count);
  }
  Some PopToMark() {
    if (marks_.empty()) {
      Fail("no mark");
      return std::nullopt;
    }
    const size_t begin = marks_.back();
    marks_.pop_back();
    return Pop(begin);
  }
  Some Pop(size_t begin) {
    const auto from = stack_.begin() + static_cast<ptrdiff_t>(begin);
    std::vector<PickleRef> popped(from, stack_.end());
    stack_.erase(from, stack_.end());
    return popped;
  }

  PickleNode* Top(PickleKind kind, PickleKind other) {
    const size_t floor = marks_.empty() ? 0 : marks_.back();
    if (stack_.size() <= floor) return nullptr;
    PickleNode& node = nodes_[stack_.back()];
    return node.kind == kind || node.kind == other ? &node : nullptr;
  }

  // Little-endian; 0 of no bytes.
  std::optional<uint64_t> Number(size_t width) {
    if (bytes_.size() - at_ < width) {
      Fail("an end before its end");
      return std::nullopt;
    }
    uint64_t value = 0;
    for (size_t i = 0; i < width; ++i)
      value |= uint64_t{static_cast<uint8_t>(bytes_[at_ + i])} << (8 * i);
    at_ += width;
    return value;
  }

  std::optional<std::string_view> Line() {
    const size_t end = bytes_.find('\n', at_);
    if (end == std::string_view::npos) {
      Fail("an end before its end");
      return std::nullopt;
    }
    const std::string_view line = bytes_.substr(at_, end - at_);
    at_ = end + 1;
    return line;
  }

  bool Fail(std::string what) {
    if (why_.ok()) {
      why_ = NoTensors(
          absl::StrCat("the pickle has ", what, ", at byte ", at_, ", as none of tensors has"));
    }
    return false;
  }
  const std::string_view bytes_;
  const FindPickleGlobal& find_;
  const size_t nodes_max_;
  size_t at_ = 0;
  bool done_ = false;
  absl::Status why_;
  std::deque<PickleNode> nodes_;
  std::vector<PickleRef> stack_, memo_;
  std::vector<size_t> marks_;
};

}  // namespace

absl::Status NoTensors(std::string_view what) {
  return Error(
      absl::StatusCode::kInvalidArgument, "TENSORS_INVALID",
      absl::StrCat(ToAbsl(what), "; send what pickle.dumps makes of a dict of tensors on the CPU"));
}

absl::StatusOr<Pickle> ReadPickle(std::string_view& bytes, const FindPickleGlobal& find,
                                  size_t nodes_max) {
  Reader reader(bytes, find, nodes_max);
  LORRY_RETURN_IF_ERROR(reader.Read());
  bytes.remove_prefix(reader.used());
  return reader.Result();
}

}  // namespace lorry::proxy
