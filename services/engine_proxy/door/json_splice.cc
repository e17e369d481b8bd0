#include "services/engine_proxy/door/json_splice.h"

#include <simdjson.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <utility>

#include "lib/base/check.h"
#include "lib/base/error.h"

namespace lorry::door {
namespace {

// Room for these at once saves growing step by step.
constexpr size_t kUsualKeys = 8;

absl::Status Invalid(std::string_view what) {
  return Error(absl::StatusCode::kInvalidArgument, "REQUEST_INVALID",
               "the body is not acceptable JSON: " + std::string(what));
}

constexpr auto NeedsEscape = [](char c) {
  return c == '"' || c == '\\' || static_cast<unsigned char>(c) < 0x20;
};

// The text of `quoted`, a string with its quotes that the scanner has let through.
absl::StatusOr<std::string> Unquoted(std::string_view quoted) {
  const std::string_view inner = quoted.substr(1, quoted.size() - 2);
  if (inner.find('\\') == std::string_view::npos) return std::string(inner);
  static thread_local simdjson::ondemand::parser parser;
  const simdjson::padded_string padded(quoted.data(), quoted.size());
  simdjson::ondemand::document document;
  std::string_view text;
  if (parser.iterate(padded).get(document) || document.get_string().get(text)) {
    return Invalid("a string's escapes make no text");
  }
  return std::string(text);
}

}  // namespace

absl::StatusOr<std::vector<JsonField>> ObjectFields(const PaddedBody& body) {
  const std::string_view text = body.view();
  if (!simdjson::validate_utf8(text.data(), text.size())) return Invalid("it is not UTF-8");
  return ObjectFields(body, body.whole());
}

absl::StatusOr<std::vector<JsonField>> ObjectFields(const PaddedBody& body, JsonRange range) {
  const char* const begin = body.view().data();
  JsonScanner scan(body.Text(range));
  const auto text_since = [&](const char* first) {
    return std::string_view(first, static_cast<size_t>(scan.at() - first));
  };
  scan.SkipSpace();
  if (!scan.Take('{')) return Invalid("it must be one object");
  scan.SkipSpace();
  std::vector<JsonField> fields;
  fields.reserve(kUsualKeys);
  for (bool more = !scan.Take('}'); more; more = !scan.Take('}')) {
    if (!fields.empty() && !scan.Take(',')) return Invalid("an object is not closed");
    scan.SkipSpace();
    const char* const key = scan.at();
    if (!scan.SkipString()) return Invalid(scan.problem());
    JsonField field;
    LORRY_ASSIGN_OR_RETURN(field.key, Unquoted(text_since(key)));
    if (FindField(fields, field.key) != nullptr) {
      return Invalid("it names the key '" + field.key.substr(0, 64) + "' twice");
    }
    if (fields.size() == kMaxJsonKeys) return Invalid("it has too many keys");
    scan.SkipSpace();
    if (!scan.Take(':')) return Invalid("a key has no colon behind it");
    scan.SkipSpace();
    const char* const value = scan.at();
    if (!scan.SkipValue(1, &field.value.kind)) return Invalid(scan.problem());
    field.value.offset = static_cast<size_t>(value - begin);
    field.value.length = text_since(value).size();
    fields.push_back(std::move(field));
    scan.SkipSpace();
  }
  scan.SkipSpace();
  if (!scan.AtEnd()) return Invalid("something follows the object");
  return fields;
}

absl::StatusOr<std::vector<JsonRange>> ArrayElements(const PaddedBody& body, JsonRange range,
                                                     size_t limit) {
  const char* const begin = body.view().data();
  JsonScanner scan(body.Text(range));
  if (!scan.Take('[')) return Invalid("an array is expected");
  scan.SkipSpace();
  std::vector<JsonRange> elements;
  for (bool more = !scan.Take(']'); more; more = !scan.Take(']')) {
    if (!elements.empty() && !scan.Take(',')) return Invalid("a list is not closed");
    if (elements.size() == limit) return Invalid("a list is too long");
    scan.SkipSpace();
    JsonRange element;
    element.offset = static_cast<size_t>(scan.at() - begin);
    if (!scan.SkipValue(1, &element.kind)) return Invalid(scan.problem());
    element.length = static_cast<size_t>(scan.at() - begin) - element.offset;
    elements.push_back(element);
    scan.SkipSpace();
  }
  return elements;
}

absl::StatusOr<std::string> StringValue(const PaddedBody& body, JsonRange range) {
  if (range.kind != JsonKind::kString) return Invalid("a string is expected");
  return Unquoted(body.Text(range));
}

const JsonField* FindField(const std::vector<JsonField>& fields, std::string_view key) {
  for (const JsonField& field : fields) {
    if (field.key == key) return &field;
  }
  return nullptr;
}

std::optional<uint64_t> WholeNumber(const PaddedBody& body, const JsonRange& range) {
  if (range.kind != JsonKind::kNumber) return std::nullopt;
  const std::string_view text = body.Text(range);
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<uint64_t> WholeNumber(const PaddedBody& body, const std::vector<JsonField>& fields,
                                    std::string_view key) {
  const JsonField* field = FindField(fields, key);
  return field == nullptr ? std::nullopt : WholeNumber(body, field->value);
}

std::string QuoteJson(std::string_view text) {
  std::string out;
  out.reserve(text.size() + 2);
  out += '"';
  for (;;) {
    const auto special = std::find_if(text.begin(), text.end(), NeedsEscape);
    out.append(text.begin(), special);
    if (special == text.end()) break;
    if (*special == '"' || *special == '\\') {
      out += '\\';
      out += *special;
    } else {
      char escaped[8];
      std::snprintf(escaped, sizeof(escaped), "\\u%04x", *special);
      out += escaped;
    }
    text.remove_prefix(static_cast<size_t>(special + 1 - text.begin()));
  }
  out += '"';
  return out;
}

std::string ApplyEdits(std::string_view body, std::vector<Edit> edits) {
  return SplicedBody(body, std::move(edits)).Joined();
}

SplicedBody::SplicedBody(std::string_view body, std::vector<Edit> edits)
    : edits_(std::move(edits)) {
  const auto before = [](const Edit& a, const Edit& b) { return a.offset < b.offset; };
  // Most have one edit; a sort would allocate for it.
  if (!std::is_sorted(edits_.begin(), edits_.end(), before)) {
    std::stable_sort(edits_.begin(), edits_.end(), before);
  }
  pieces_.reserve(2 * edits_.size() + 1);
  size_t at = 0;
  for (const Edit& edit : edits_) {
    LORRY_CHECK(edit.offset >= at && edit.offset + edit.length <= body.size());
    pieces_.push_back(body.substr(at, edit.offset - at));
    pieces_.push_back(edit.text);
    at = edit.offset + edit.length;
  }
  pieces_.push_back(body.substr(at));
}

std::string SplicedBody::Joined() const {
  size_t size = 0;
  for (const std::string_view piece : pieces_) size += piece.size();
  std::string out;
  out.reserve(size);
  for (const std::string_view piece : pieces_) out += piece;
  return out;
}

Edit InsertField(const JsonRange& object, bool object_is_empty, std::string_view key,
                 std::string_view json_value) {
  std::string text = QuoteJson(key) + ":" + std::string(json_value);
  if (!object_is_empty) text += ",";
  return {object.offset + 1, 0, std::move(text)};
}

}  // namespace lorry::door
