#include "services/engine_proxy/door/json_splice.h"

#include <simdjson.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "lib/base/check.h"
#include "lib/base/error.h"

namespace lorry::door {
namespace {

namespace od = simdjson::ondemand;

absl::Status Invalid(std::string_view what) {
  return Error(absl::StatusCode::kInvalidArgument, "REQUEST_INVALID",
               "the body is not acceptable JSON: " + std::string(what));
}

absl::Status Invalid(simdjson::error_code code) { return Invalid(simdjson::error_message(code)); }

// One parser a thread: it keeps its index buffer, which is what makes it cheap.
od::parser& ThreadParser() {
  static thread_local od::parser parser;
  return parser;
}

JsonKind KindOf(od::json_type type) {
  switch (type) {
    case od::json_type::array:
      return JsonKind::kArray;
    case od::json_type::object:
      return JsonKind::kObject;
    case od::json_type::string:
      return JsonKind::kString;
    case od::json_type::number:
      return JsonKind::kNumber;
    case od::json_type::boolean:
      return JsonKind::kBool;
    case od::json_type::null:
      return JsonKind::kNull;
  }
  return JsonKind::kNull;
}

bool IsSpace(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

// Consumes `value` whole. On-demand parsing checks only what it visits, so every scalar is read as
// what it claims to be; numbers may be written in any way that the engines accept (NaN is refused,
// as the JSON grammar does).
simdjson::error_code Walk(od::value value, od::json_type type, int depth) {
  if (depth > kMaxJsonDepth) return simdjson::DEPTH_ERROR;
  switch (type) {
    case od::json_type::array: {
      od::array array;
      if (auto error = value.get_array().get(array)) return error;
      for (auto element : array) {
        od::value item;
        if (auto error = element.get(item)) return error;
        od::json_type item_type;
        if (auto error = item.type().get(item_type)) return error;
        if (auto error = Walk(item, item_type, depth + 1)) return error;
      }
      return simdjson::SUCCESS;
    }
    case od::json_type::object: {
      od::object object;
      if (auto error = value.get_object().get(object)) return error;
      for (auto field : object) {
        od::value item;
        if (auto error = field.value().get(item)) return error;
        od::json_type item_type;
        if (auto error = item.type().get(item_type)) return error;
        if (auto error = Walk(item, item_type, depth + 1)) return error;
      }
      return simdjson::SUCCESS;
    }
    case od::json_type::string: {
      od::raw_json_string text;
      return value.get_raw_json_string().get(text);
    }
    case od::json_type::boolean: {
      bool ignored = false;
      return value.get_bool().get(ignored);
    }
    case od::json_type::null: {
      bool is_null = false;
      if (auto error = value.is_null().get(is_null)) return error;
      return is_null ? simdjson::SUCCESS : simdjson::N_ATOM_ERROR;
    }
    case od::json_type::number: {
      // Integers beyond 64 bits are legal JSON that both engines read; only the form of the token
      // matters here.
      const std::string_view token = value.raw_json_token();
      const bool plain = std::all_of(token.begin(), token.end(), [](char c) {
        return (c >= '0' && c <= '9') || c == '-' || c == '+' || c == '.' || c == 'e' || c == 'E' ||
               IsSpace(c);
      });
      if (!plain) return simdjson::NUMBER_ERROR;
      double ignored = 0;
      const auto error = value.get_double().get(ignored);
      return error;
    }
  }
  return simdjson::INCORRECT_TYPE;
}

class RangeReader {
 public:
  RangeReader(const PaddedBody& body, JsonRange range) : body_(body), range_(range) {}

  simdjson::error_code Open() {
    const size_t room = body_.view().size() - range_.offset + body_.padding();
    const simdjson::padded_string_view view(body_.view().data() + range_.offset, range_.length,
                                            room);
    return ThreadParser().iterate(view).get(document);
  }

  // Walks `value` and gives back its range within the body.
  simdjson::error_code Consume(od::value value, JsonRange* out) {
    od::json_type type;
    if (auto error = value.type().get(type)) return error;
    const char* const begin = body_.view().data();
    const char* first = nullptr;
    if (auto error = value.current_location().get(first)) return error;
    if (auto error = Walk(value, type, 1)) return error;
    const char* next = nullptr;  // the ',' or the closing bracket behind the value
    if (auto error = document.current_location().get(next)) return error;
    while (next > first && IsSpace(next[-1])) --next;
    *out = {static_cast<size_t>(first - begin), static_cast<size_t>(next - first), KindOf(type)};
    return simdjson::SUCCESS;
  }

  od::document document;

 private:
  const PaddedBody& body_;
  JsonRange range_;
};

}  // namespace

PaddedBody::PaddedBody(std::string bytes) : bytes_(std::move(bytes)), size_(bytes_.size()) {
  bytes_.resize(size_ + simdjson::SIMDJSON_PADDING, ' ');
}

absl::StatusOr<std::vector<JsonField>> ObjectFields(const PaddedBody& body) {
  return ObjectFields(body, body.whole());
}

absl::StatusOr<std::vector<JsonField>> ObjectFields(const PaddedBody& body, JsonRange range) {
  RangeReader reader(body, range);
  if (auto error = reader.Open()) return Invalid(error);
  od::object object;
  if (reader.document.get_object().get(object)) return Invalid("it must be one object");
  std::vector<JsonField> fields;
  for (auto entry : object) {
    if (entry.error()) return Invalid(entry.error());
    JsonField field;
    std::string_view key;
    if (auto error = entry.unescaped_key().get(key)) return Invalid(error);
    field.key = std::string(key);
    if (FindField(fields, field.key) != nullptr) {
      return Invalid("it names the key '" + field.key.substr(0, 64) + "' twice");
    }
    if (fields.size() == kMaxJsonKeys) return Invalid("it has too many keys");
    od::value value;
    if (auto error = entry.value().get(value)) return Invalid(error);
    if (auto error = reader.Consume(value, &field.value)) return Invalid(error);
    fields.push_back(std::move(field));
  }
  // Simdjson 3.0 has no at_end(): a place behind the object means that more follows.
  const char* rest = nullptr;
  if (!reader.document.current_location().get(rest)) return Invalid("something follows the object");
  return fields;
}

absl::StatusOr<std::vector<JsonRange>> ArrayElements(const PaddedBody& body, JsonRange range,
                                                     size_t limit) {
  RangeReader reader(body, range);
  if (auto error = reader.Open()) return Invalid(error);
  od::array array;
  if (reader.document.get_array().get(array)) return Invalid("an array is expected");
  std::vector<JsonRange> elements;
  for (auto entry : array) {
    if (elements.size() == limit) return Invalid("a list is too long");
    od::value value;
    if (auto error = entry.get(value)) return Invalid(error);
    JsonRange element;
    if (auto error = reader.Consume(value, &element)) return Invalid(error);
    elements.push_back(element);
  }
  return elements;
}

absl::StatusOr<std::string> StringValue(const PaddedBody& body, JsonRange range) {
  RangeReader reader(body, range);
  if (auto error = reader.Open()) return Invalid(error);
  std::string_view text;
  if (auto error = reader.document.get_string().get(text)) return Invalid(error);
  return std::string(text);
}

const JsonField* FindField(const std::vector<JsonField>& fields, std::string_view key) {
  for (const JsonField& field : fields) {
    if (field.key == key) return &field;
  }
  return nullptr;
}

std::string QuoteJson(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escaped[8];
      std::snprintf(escaped, sizeof(escaped), "\\u%04x", c);
      out += escaped;
    } else {
      out += c;
    }
  }
  return out + '"';
}

std::string ApplyEdits(std::string_view body, std::vector<Edit> edits) {
  std::stable_sort(edits.begin(), edits.end(),
                   [](const Edit& a, const Edit& b) { return a.offset < b.offset; });
  size_t added = 0;
  for (const Edit& edit : edits) added += edit.text.size();
  std::string out;
  out.reserve(body.size() + added + simdjson::SIMDJSON_PADDING);
  size_t at = 0;
  for (const Edit& edit : edits) {
    LORRY_CHECK(edit.offset >= at && edit.offset + edit.length <= body.size());
    out.append(body.substr(at, edit.offset - at)).append(edit.text);
    at = edit.offset + edit.length;
  }
  return out.append(body.substr(at));
}

Edit InsertField(const JsonRange& object, bool object_is_empty, std::string_view key,
                 std::string_view json_value) {
  std::string text = QuoteJson(key) + ":" + std::string(json_value);
  if (!object_is_empty) text += ",";
  return {object.offset + 1, 0, std::move(text)};
}

}  // namespace lorry::door
