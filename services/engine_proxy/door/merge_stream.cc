#include "services/engine_proxy/door/merge_stream.h"

#include <charconv>
#include <utility>

#include "lib/base/error.h"
#include "services/engine_proxy/door/json_splice.h"

namespace lorry::door {
namespace {

constexpr std::string_view kEventEnd = "\n\n";
constexpr std::string_view kData = "data:";
constexpr std::string_view kDone = "[DONE]";

void AppendEvent(std::string_view json, std::string* out) {
  out->append("data: ").append(json).append(kEventEnd);
}

// The prompt that an `index` of one request speaks of.
absl::StatusOr<size_t> PromptAt(const PaddedBody& body, const JsonRange& at, const Samples& of) {
  const std::string_view text = body.Text(at);
  size_t prompt = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), prompt);
  if (error != std::errc() || end != text.data() + text.size() || prompt >= of.prompts()) {
    return Error(absl::StatusCode::kInternal, "ENGINE_REPLY_INVALID",
                 "an event of one of n streams is numbered beyond its prompts");
  }
  return prompt;
}

}  // namespace

absl::Status StreamMerger::Feed(size_t sample, std::string_view piece, std::string* out) {
  std::string& tail = tails_[sample];
  // An end may lie across the two pieces.
  size_t searched = tail.empty() ? 0 : tail.size() - 1;
  held_bytes_ += piece.size();
  tail += piece;
  size_t at = 0;
  for (;;) {
    const size_t end = tail.find(kEventEnd, searched);
    if (end == std::string::npos) break;
    LORRY_RETURN_IF_ERROR(OnEvent(sample, std::string_view(tail).substr(at, end - at), out));
    at = searched = end + kEventEnd.size();
  }
  tail.erase(0, at);
  held_bytes_ -= at;
  return absl::OkStatus();
}

absl::Status StreamMerger::OnEvent(size_t sample, std::string_view event, std::string* out) {
  if (event.substr(0, kData.size()) != kData) {  // a comment that keeps the connection open
    out->append(event).append(kEventEnd);
    return absl::OkStatus();
  }
  event.remove_prefix(kData.size());
  event.remove_prefix(std::min(event.find_first_not_of(' '), event.size()));
  if (event == kDone) return absl::OkStatus();
  return shape_ == BodyShape::kGenerate ? OnGenerated(sample, std::string(event), out)
                                        : OnCompleted(sample, std::string(event), out);
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
  AppendEvent(ApplyEdits(body.view(), std::move(edits)), out);
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
  AppendEvent(ApplyEdits(body.view(), std::move(edits)), out);
  return absl::OkStatus();
}

absl::Status StreamMerger::End(std::string* out) {
  if (!usage_event_.empty()) {
    const PaddedBody body(std::move(usage_event_));
    LORRY_ASSIGN_OR_RETURN(const auto fields, ObjectFields(body));
    std::vector<Edit> edits;
    LORRY_RETURN_IF_ERROR(usage_.Write(body, FindField(fields, "usage")->value, &edits));
    AppendEvent(ApplyEdits(body.view(), std::move(edits)), out);
  }
  AppendEvent(kDone, out);
  return absl::OkStatus();
}

}  // namespace lorry::door
