// Finds byte ranges in a JSON body and splices bytes there; everything else stays as the client
// wrote it.
//
// Pure functions, any thread. Ranges and keys refer to the body they came from and die with it. The
// whole document is walked, so that what the door accepts has one meaning: one value, balanced, no
// key twice in the objects it looks at, bounded depth.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "services/engine_proxy/door/json_scan.h"

namespace lorry::door {

// Request objects of both engines have fewer than 120 fields.
inline constexpr size_t kMaxJsonKeys = 512;

struct JsonRange {
  size_t offset = 0;
  size_t length = 0;
  JsonKind kind = JsonKind::kNull;
};

struct JsonField {
  std::string key;  // unescaped
  JsonRange value;
};

// JSON text, its own or of whoever keeps it for longer.
class PaddedBody {
 public:
  explicit PaddedBody(std::string bytes) : own_(std::move(bytes)) {}
  static PaddedBody Lent(std::string_view bytes) {
    PaddedBody body{std::string()};
    body.lent_ = bytes;
    return body;
  }
  std::string_view view() const { return lent_ ? *lent_ : own_; }
  std::string_view Text(const JsonRange& range) const {
    return view().substr(range.offset, range.length);
  }
  JsonRange whole() const { return {0, view().size(), JsonKind::kObject}; }

 private:
  std::string own_;
  std::optional<std::string_view> lent_;
};

// The fields of the object in `range` (the body itself by default), in order. INVALID_ARGUMENT
// REQUEST_INVALID for anything that is not one JSON object, names a key twice, has too many keys or
// is nested too deep.
absl::StatusOr<std::vector<JsonField>> ObjectFields(const PaddedBody& body, JsonRange range);
absl::StatusOr<std::vector<JsonField>> ObjectFields(const PaddedBody& body);

// The elements of the array in `range`; at most `limit`.
absl::StatusOr<std::vector<JsonRange>> ArrayElements(const PaddedBody& body, JsonRange range,
                                                     size_t limit);

// The unescaped text of the string in `range`.
absl::StatusOr<std::string> StringValue(const PaddedBody& body, JsonRange range);

const JsonField* FindField(const std::vector<JsonField>& fields, std::string_view key);

// The whole number in `range`, or behind `key`. None where something else stands there, such as a
// fraction, or where it is larger than 64 bits.
std::optional<uint64_t> WholeNumber(const PaddedBody& body, const JsonRange& range);
std::optional<uint64_t> WholeNumber(const PaddedBody& body, const std::vector<JsonField>& fields,
                                    std::string_view key);

// `text` as a JSON string with its quotes.
std::string QuoteJson(std::string_view text);

// Replaces [offset, offset + length) of `body` by `text`. Edits are sorted by offset and do not
// overlap.
struct Edit {
  size_t offset = 0;
  size_t length = 0;
  std::string text;
};
std::string ApplyEdits(std::string_view body, std::vector<Edit> edits);

// A body with edits, as the pieces that it is sent in: nothing of it is copied. Refers to `body`.
class SplicedBody {
 public:
  SplicedBody(std::string_view body, std::vector<Edit> edits);
  SplicedBody(const SplicedBody&) = delete;
  SplicedBody& operator=(const SplicedBody&) = delete;
  std::span<const std::string_view> pieces() const { return pieces_; }
  std::string Joined() const;

 private:
  std::vector<Edit> edits_;
  absl::InlinedVector<std::string_view, 5> pieces_;  // of two edits
};

// An edit that adds a field to the object at `object` (whose first byte is '{').
Edit InsertField(const JsonRange& object, bool object_is_empty, std::string_view key,
                 std::string_view json_value);

}  // namespace lorry::door
