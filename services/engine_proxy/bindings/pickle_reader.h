// Reads a pickle as data: what it would import, call or build is written down and never done.
//
// Of the opcodes only those that Python's pickler writes of plain values, and of the objects that
// torch makes of tensors; of imports only those that the caller knows. The result is a graph in one
// vector: nothing in it is as deep or as large as the bytes may claim, whatever they say. Pure, any
// thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace lorry::proxy {

// An adapter of as many tensors as an image may have takes 20 nodes for each at most. Of 64 bytes
// each that is 170 MB, for a caller who means no good.
inline constexpr size_t kPickleNodesMax = 2'700'000;

using PickleRef = uint32_t;  // an index of Pickle::nodes
inline constexpr PickleRef kNoPickleRef = std::numeric_limits<PickleRef>::max();

enum class PickleKind : uint8_t {
  kNone,
  kBool,
  kInt,
  kText,
  kBytes,
  kTuple,
  kList,
  kDict,
  kGlobal,      // what was imported
  kCall,        // what a call of a global would have made
  kPersistent,  // what the pickler left to somebody else to find
};

struct PickleNode {
  PickleKind kind = PickleKind::kNone;
  PickleRef callee = kNoPickleRef;     // kCall
  PickleRef arguments = kNoPickleRef;  // kCall, kPersistent
  PickleRef state = kNoPickleRef;      // kCall: what it was given afterwards, if anything
  int64_t number = 0;                  // kBool, kInt; kGlobal: the caller's number for it
  std::string_view text = {};          // kText, kBytes: where the pickle has it
  std::vector<PickleRef> items = {};  // in order; of a dict, and of a call, keys and values in turn
};

struct Pickle {
  std::deque<PickleNode> nodes;  // never copied as it grows
  PickleRef root = 0;

  const PickleNode& at(PickleRef ref) const { return nodes[ref]; }
};

// TENSORS_INVALID, with what to send instead.
absl::Status NoTensors(std::string_view what);

// The caller's number for what may be imported, or why it may not.
using FindPickleGlobal =
    std::function<absl::StatusOr<int64_t>(std::string_view module, std::string_view name)>;

// The pickle at the front of `bytes`, which are behind it afterwards, and outlive the result.
// INVALID_ARGUMENT TENSORS_INVALID, or what `find` says.
absl::StatusOr<Pickle> ReadPickle(std::string_view& bytes, const FindPickleGlobal& find,
                                  size_t nodes_max = kPickleNodesMax);

}  // namespace lorry::proxy
