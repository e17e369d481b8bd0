#include "services/engine_proxy/door/merge_stream.h"

#include <optional>
#include <utility>

#include "lib/base/error.h"
#include "services/engine_proxy/door/json_splice.h"

namespace lorry::door {
namespace {

// The prompt that an `index` of one request speaks of.
absl::StatusOr<size_t> PromptAt(const PaddedBody& body, const JsonRange& at, const Samples& of) {
  const std::optional<uint64_t> prompt = WholeNumber(body, at);
  if (prompt && *prompt < of.prompts()) return static_cast<size_t>(*prompt);
  return Error(absl::StatusCode::kInternal, "ENGINE_REPLY_INVALID",
               "an event of one of n streams is numbered beyond its prompts");
}

}  // namespace

absl::Status StreamMerger::Feed(size_t sample, std::string_view piece, std::string* out) {
  EventReader& events = events_[sample];
  const size_t held_before = events.held_bytes();
  events.Add(piece);
  while (const auto event = events.Next()) LORRY_RETURN_IF_ERROR(OnEvent(sample, *event, out));
  held_bytes_ = held_bytes_ - held_before + events.held_bytes();
  return absl::OkStatus();
}

absl::Status StreamMerger::OnEvent(size_t sample, std::string_view event, std::string* out) {
  const auto data = DataOf(event);
  if (!data) {  // a comment that keeps the connection open
    AppendEvent(event, out);
    return absl::OkStatus();
  }
  if (*data == kDoneData) return absl::OkStatus();
  return shape_ == BodyShape::kGenerate ? OnGenerated(sample, std::string(*data), out)
                                        : OnCompleted(sample, std::string(*data), out);
}

// {"text":...,"meta_info":{...},"index":0}: of one prompt SGLang leaves `index` out.
absl::Status StreamMerger::OnGenerated(size_t sample, std::string json, std::string* out) {
  const PaddedBody body(std::move(json));
  LORRY_ASSIGN_OR_RETURN(const auto fields, ObjectFields(body));
  std::vector<Edit> edits;
  if (const JsonField* index = FindField(fields, "index")) {
    LORRY_ASSIGN_OR_RETURN(const size_t prompt, PromptAt(body, index->value, of_));
    edits.push_back(
        {index->value.offset, index->value.length, std::to_string(of_.NumberOf(prompt, sample))});
  } else if (FindField(fields, "error") == nullptr) {
    const JsonRange object{body.view().find('{'), body.view().size(), JsonKind::kObject};
    edits.push_back(InsertField(object, fields.empty(), "index", std::to_string(sample)));
  }
  AppendData(ApplyEdits(body.view(), std::move(edits)), out);
  return absl::OkStatus();
}

// Without choices an event speaks of the whole request: its usage.
absl::Status StreamMerger::OnCompleted(size_t sample, std::string json, std::string* out) {
  const PaddedBody body(std::move(json));
  LORRY_ASSIGN_OR_RETURN(const auto fields, ObjectFields(body));
  std::vector<JsonRange> items;
  if (const JsonField* choices = FindField(fields, "choices")) {
    LORRY_ASSIGN_OR_RETURN(items, ArrayElements(body, choices->value, of_.prompts()));
  }
  const JsonField* usage = FindField(fields, "usage");
  if (items.empty() && usage != nullptr && usage->value.kind == JsonKind::kObject) {
    usage_event_ = body.view();
    return usage_.Add(body, usage->value);
  }
  std::vector<Edit> edits;
  for (const JsonRange& item : items) {
    LORRY_ASSIGN_OR_RETURN(const auto inner, ObjectFields(body, item));
    const JsonField* index = FindField(inner, "index");
    if (index == nullptr) continue;
    LORRY_ASSIGN_OR_RETURN(const size_t prompt, PromptAt(body, index->value, of_));
    edits.push_back(
        {index->value.offset, index->value.length, std::to_string(of_.NumberOf(prompt, sample))});
  }
  AppendData(ApplyEdits(body.view(), std::move(edits)), out);
  return absl::OkStatus();
}

absl::Status StreamMerger::End(std::string* out) {
  if (!usage_event_.empty()) {
    const PaddedBody body(std::move(usage_event_));
    LORRY_ASSIGN_OR_RETURN(const auto fields, ObjectFields(body));
    std::vector<Edit> edits;
    LORRY_RETURN_IF_ERROR(usage_.Write(body, FindField(fields, "usage")->value, &edits));
    AppendData(ApplyEdits(body.view(), std::move(edits)), out);
  }
  AppendData(kDoneData, out);
  return absl::OkStatus();
}

}  // namespace lorry::door
