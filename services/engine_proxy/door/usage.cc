#include "services/engine_proxy/door/usage.h"

#include <string_view>

#include "lib/base/error.h"

namespace lorry::door {
namespace {

uint64_t NumberAt(const PaddedBody& body, const std::vector<JsonField>& fields,
                  std::string_view key) {
  return WholeNumber(body, fields, key).value_or(0);
}

void SetNumber(const std::vector<JsonField>& fields, std::string_view key, uint64_t value,
               std::vector<Edit>* edits) {
  if (const JsonField* field = FindField(fields, key)) {
    edits->push_back({field->value.offset, field->value.length, std::to_string(value)});
  }
}

// The counts in completion_tokens_details; none where there is no such object.
absl::StatusOr<std::vector<JsonField>> CompletionDetails(const PaddedBody& body,
                                                         const std::vector<JsonField>& counts) {
  const JsonField* details = FindField(counts, "completion_tokens_details");
  if (details == nullptr || details->value.kind != JsonKind::kObject)
    return std::vector<JsonField>();
  LORRY_ASSIGN_OR_RETURN(std::vector<JsonField> fields, ObjectFields(body, details->value));
  std::erase_if(fields,
                [](const JsonField& field) { return field.value.kind != JsonKind::kNumber; });
  return fields;
}

}  // namespace

absl::Status Usage::Add(const PaddedBody& body, const JsonRange& at) {
  LORRY_ASSIGN_OR_RETURN(const auto counts, ObjectFields(body, at));
  prompt_tokens = NumberAt(body, counts, "prompt_tokens");
  completion_tokens += NumberAt(body, counts, "completion_tokens");
  reasoning_tokens += NumberAt(body, counts, "reasoning_tokens");
  LORRY_ASSIGN_OR_RETURN(const auto details, CompletionDetails(body, counts));
  for (const JsonField& field : details)
    completion_details[field.key] += NumberAt(body, details, field.key);
  return absl::OkStatus();
}

absl::Status Usage::Write(const PaddedBody& body, const JsonRange& at,
                          std::vector<Edit>* edits) const {
  LORRY_ASSIGN_OR_RETURN(const auto counts, ObjectFields(body, at));
  SetNumber(counts, "completion_tokens", completion_tokens, edits);
  SetNumber(counts, "reasoning_tokens", reasoning_tokens, edits);
  SetNumber(counts, "total_tokens", prompt_tokens + completion_tokens, edits);
  LORRY_ASSIGN_OR_RETURN(const auto details, CompletionDetails(body, counts));
  for (const auto& [key, value] : completion_details) SetNumber(details, key, value, edits);
  return absl::OkStatus();
}

}  // namespace lorry::door
