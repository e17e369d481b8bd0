#include "services/engine_proxy/door/usage.h"

#include <charconv>
#include <string_view>

#include "lib/base/error.h"

namespace lorry::door {
namespace {

uint64_t NumberAt(const PaddedBody& body, const std::vector<JsonField>& fields,
                  std::string_view key) {
  const JsonField* field = FindField(fields, key);
  uint64_t value = 0;
  if (field != nullptr) {
    const std::string_view text = body.Text(field->value);
    std::from_chars(text.data(), text.data() + text.size(), value);
  }
  return value;
}

void SetNumber(const std::vector<JsonField>& fields, std::string_view key, uint64_t value,
               std::vector<Edit>* edits) {
  if (const JsonField* field = FindField(fields, key)) {
    edits->push_back({field->value.offset, field->value.length, std::to_string(value)});
  }
}

}  // namespace

absl::Status Usage::Add(const PaddedBody& body, const JsonRange& at) {
  LORRY_ASSIGN_OR_RETURN(const auto counts, ObjectFields(body, at));
  prompt_tokens = NumberAt(body, counts, "prompt_tokens");
  completion_tokens += NumberAt(body, counts, "completion_tokens");
  reasoning_tokens += NumberAt(body, counts, "reasoning_tokens");
  return absl::OkStatus();
}

absl::Status Usage::Write(const PaddedBody& body, const JsonRange& at,
                          std::vector<Edit>* edits) const {
  LORRY_ASSIGN_OR_RETURN(const auto counts, ObjectFields(body, at));
  SetNumber(counts, "completion_tokens", completion_tokens, edits);
  SetNumber(counts, "reasoning_tokens", reasoning_tokens, edits);
  SetNumber(counts, "total_tokens", prompt_tokens + completion_tokens, edits);
  return absl::OkStatus();
}

}  // namespace lorry::door
