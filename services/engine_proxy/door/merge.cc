#include "services/engine_proxy/door/merge.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "lib/base/error.h"
#include "services/engine_proxy/door/json_splice.h"

namespace lorry::door {
namespace {

absl::Status Malformed() {
  return Error(absl::StatusCode::kInternal, "ENGINE_REPLY_INVALID",
               "the engine's reply to one of n requests is not an OpenAI completion");
}

struct Parsed {
  std::string choice;  // with its index rewritten
  uint64_t prompt_tokens = 0;
  uint64_t completion_tokens = 0;
};

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

absl::StatusOr<Parsed> ParseOne(const PaddedBody& body, size_t index) {
  LORRY_ASSIGN_OR_RETURN(const auto fields, ObjectFields(body));
  const JsonField* choices = FindField(fields, "choices");
  if (choices == nullptr) return Malformed();
  LORRY_ASSIGN_OR_RETURN(const auto items, ArrayElements(body, choices->value, 1));
  if (items.size() != 1) return Malformed();
  LORRY_ASSIGN_OR_RETURN(const auto inner, ObjectFields(body, items[0]));
  const JsonField* number = FindField(inner, "index");
  if (number == nullptr) return Malformed();
  Parsed parsed;
  parsed.choice = ApplyEdits(body.Text(items[0]), {{number->value.offset - items[0].offset,
                                                    number->value.length, std::to_string(index)}});
  if (const JsonField* usage = FindField(fields, "usage");
      usage != nullptr && usage->value.kind == JsonKind::kObject) {
    LORRY_ASSIGN_OR_RETURN(const auto counts, ObjectFields(body, usage->value));
    parsed.prompt_tokens = NumberAt(body, counts, "prompt_tokens");
    parsed.completion_tokens = NumberAt(body, counts, "completion_tokens");
  }
  return parsed;
}

void SetNumber(const std::vector<JsonField>& fields, std::string_view key, uint64_t value,
               std::vector<Edit>* edits) {
  if (const JsonField* field = FindField(fields, key)) {
    edits->push_back({field->value.offset, field->value.length, std::to_string(value)});
  }
}

}  // namespace

std::string MergeGenerate(const std::vector<std::string>& replies) {
  std::string out = "[";
  for (size_t i = 0; i < replies.size(); ++i) out += (i == 0 ? "" : ",") + replies[i];
  return out + "]";
}

absl::StatusOr<std::string> MergeOpenAi(std::vector<std::string> replies) {
  std::string choices = "[";
  uint64_t prompt_tokens = 0;
  uint64_t completion_tokens = 0;
  for (size_t i = 1; i < replies.size(); ++i) {
    const PaddedBody body(std::move(replies[i]));
    auto parsed = ParseOne(body, i);
    if (!parsed.ok()) return Malformed();
    choices += "," + parsed->choice;
    completion_tokens += parsed->completion_tokens;
  }
  const PaddedBody first(std::move(replies.front()));
  auto parsed = ParseOne(first, 0);
  if (!parsed.ok()) return Malformed();
  choices.insert(1, parsed->choice);
  completion_tokens += parsed->completion_tokens;
  prompt_tokens = parsed->prompt_tokens;
  LORRY_ASSIGN_OR_RETURN(const auto fields, ObjectFields(first));
  const JsonRange at = FindField(fields, "choices")->value;
  std::vector<Edit> edits = {{at.offset, at.length, choices + "]"}};
  if (const JsonField* usage = FindField(fields, "usage");
      usage != nullptr && usage->value.kind == JsonKind::kObject) {
    LORRY_ASSIGN_OR_RETURN(const auto counts, ObjectFields(first, usage->value));
    SetNumber(counts, "completion_tokens", completion_tokens, &edits);
    SetNumber(counts, "total_tokens", prompt_tokens + completion_tokens, &edits);
  }
  return ApplyEdits(first.view(), std::move(edits));
}

IdRestorer::IdRestorer(std::vector<std::string> ours, const std::vector<std::string>& theirs)
    : ours_(std::move(ours)) {
  for (const std::string& id : theirs) {
    const std::string quoted = QuoteJson(id);
    theirs_.push_back(quoted.substr(1, quoted.size() - 2));
  }
}

std::string IdRestorer::Feed(std::string_view piece, bool end) {
  kept_ += piece;
  std::string out;
  size_t at = 0;
  while (at < kept_.size()) {
    size_t next = std::string::npos;
    size_t which = 0;
    for (size_t i = 0; i < ours_.size(); ++i) {
      const size_t found = kept_.find(ours_[i], at);
      if (found < next) {
        next = found;
        which = i;
      }
    }
    if (next == std::string::npos) break;
    out.append(kept_, at, next - at).append(theirs_[which]);
    at = next + ours_[which].size();
  }
  size_t tail = kept_.size();
  if (!end) {
    // The longest tail that is the beginning of an id stays.
    const size_t longest = std::min(kept_.size() - at, ours_.front().size() - 1);
    for (size_t length = longest; length > 0 && tail == kept_.size(); --length) {
      const std::string_view candidate = std::string_view(kept_).substr(kept_.size() - length);
      for (const std::string& id : ours_) {
        if (std::string_view(id).substr(0, length) == candidate) tail = kept_.size() - length;
      }
    }
  }
  out.append(kept_, at, tail - at);
  kept_.erase(0, tail);
  return out;
}

}  // namespace lorry::door
