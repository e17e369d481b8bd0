#include "services/engine_proxy/door/merge.h"

#include <algorithm>
#include <utility>

#include "lib/base/error.h"
#include "services/engine_proxy/door/json_splice.h"
#include "services/engine_proxy/door/usage.h"

namespace lorry::door {
namespace {

absl::Status Malformed() {
  return Error(absl::StatusCode::kInternal, "ENGINE_REPLY_INVALID",
               "the engine's reply to one of n requests is not a completion of each prompt");
}

// One for each prompt, in their order, with the number that it has among all.
absl::StatusOr<std::vector<std::string>> Choices(const PaddedBody& reply, const Samples& of,
                                                 size_t sample) {
  LORRY_ASSIGN_OR_RETURN(const auto fields, ObjectFields(reply));
  const JsonField* choices = FindField(fields, "choices");
  if (choices == nullptr) return Malformed();
  LORRY_ASSIGN_OR_RETURN(const auto items, ArrayElements(reply, choices->value, of.prompts()));
  if (items.size() != of.prompts()) return Malformed();
  std::vector<std::string> out;
  for (size_t prompt = 0; prompt < items.size(); ++prompt) {
    LORRY_ASSIGN_OR_RETURN(const auto inner, ObjectFields(reply, items[prompt]));
    const JsonField* index = FindField(inner, "index");
    if (index == nullptr) return Malformed();
    out.push_back(ApplyEdits(reply.Text(items[prompt]),
                             {{index->value.offset - items[prompt].offset, index->value.length,
                               std::to_string(of.NumberOf(prompt, sample))}}));
  }
  return out;
}

// Lists by sample become one list by prompt.
std::string Joined(const std::vector<std::vector<std::string>>& by_sample, const Samples& of) {
  std::string out = "[";
  for (size_t prompt = 0; prompt < of.prompts(); ++prompt) {
    for (const std::vector<std::string>& texts : by_sample) {
      if (out.size() > 1) out += ',';
      out += texts[prompt];
    }
  }
  return out + "]";
}

absl::StatusOr<std::vector<std::string>> Items(std::string reply, const Samples& of) {
  if (of.batch == 0) return std::vector<std::string>{std::move(reply)};
  const PaddedBody body(std::move(reply));
  LORRY_ASSIGN_OR_RETURN(const auto ranges, ArrayElements(body, body.whole(), of.batch));
  if (ranges.size() != of.batch) return Malformed();
  std::vector<std::string> items;
  for (const JsonRange& range : ranges) items.emplace_back(body.Text(range));
  return items;
}

absl::Status AddUsage(const PaddedBody& reply, Usage* sum) {
  LORRY_ASSIGN_OR_RETURN(const auto fields, ObjectFields(reply));
  const JsonField* usage = FindField(fields, "usage");
  if (usage == nullptr || usage->value.kind != JsonKind::kObject) return absl::OkStatus();
  return sum->Add(reply, usage->value);
}

absl::StatusOr<std::string> WithChoices(const PaddedBody& reply, std::string choices,
                                        const Usage& sum) {
  LORRY_ASSIGN_OR_RETURN(const auto fields, ObjectFields(reply));
  const JsonField* old = FindField(fields, "choices");
  if (old == nullptr) return Malformed();
  std::vector<Edit> edits = {{old->value.offset, old->value.length, std::move(choices)}};
  const JsonField* usage = FindField(fields, "usage");
  if (usage != nullptr && usage->value.kind == JsonKind::kObject) {
    LORRY_RETURN_IF_ERROR(sum.Write(reply, usage->value, &edits));
  }
  return ApplyEdits(reply.view(), std::move(edits));
}

}  // namespace

absl::StatusOr<std::string> MergeGenerate(std::vector<std::string> replies, const Samples& of) {
  std::vector<std::vector<std::string>> by_sample;
  for (std::string& reply : replies) {
    auto items = Items(std::move(reply), of);
    if (!items.ok()) return Malformed();
    by_sample.push_back(*std::move(items));
  }
  return Joined(by_sample, of);
}

absl::StatusOr<std::string> MergeOpenAi(std::vector<std::string> replies, const Samples& of) {
  Usage sum;
  std::vector<std::vector<std::string>> by_sample;
  std::string first;
  for (size_t sample = 0; sample < replies.size(); ++sample) {
    if (sample == 0) first = replies[0];
    const PaddedBody reply(std::move(replies[sample]));
    auto choices = Choices(reply, of, sample);
    if (!choices.ok() || !AddUsage(reply, &sum).ok()) return Malformed();
    by_sample.push_back(*std::move(choices));
  }
  auto merged = WithChoices(PaddedBody(std::move(first)), Joined(by_sample, of), sum);
  if (!merged.ok()) return Malformed();
  return merged;
}

}  // namespace lorry::door
