#include "services/engine_proxy/door/resume_plan.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "lib/base/error.h"
#include "services/engine_proxy/door/framing.h"

namespace lorry::door {
namespace {

using Fields = std::vector<JsonField>;

// What means the same in a continuation. Penalties look back on what was generated, seeds and
// grammars begin anew, and what is not known may do either.
constexpr std::string_view kFields[] = {"input_ids",
                                        "sampling_params",
                                        "stream",
                                        "rid",
                                        "lora_path",
                                        "return_logprob",
                                        "logprob_start_len",
                                        "top_logprobs_num",
                                        "token_ids_logprob",
                                        "extra_key",
                                        "cache_salt",
                                        "priority",
                                        "return_text_in_logprobs"};
constexpr std::string_view kSampling[] = {"max_new_tokens",
                                          "temperature",
                                          "top_p",
                                          "top_k",
                                          "min_p",
                                          "n",
                                          "ignore_eos",
                                          "skip_special_tokens",
                                          "stop_token_ids",
                                          "no_stop_trim",
                                          "spaces_between_special_tokens"};
// Of what SGLang writes into meta_info: counts of tokens, lists with an entry a token, and what it
// says of the prompt.
constexpr std::string_view kCounts[] = {"completion_tokens", "reasoning_tokens",
                                        "output_token_logprobs_length"};
constexpr std::string_view kByToken[] = {"output_token_logprobs", "output_top_logprobs",
                                         "output_token_ids_logprobs"};
constexpr std::string_view kOfPrompt[] = {"prompt_tokens", "cached_tokens", "input_token_logprobs",
                                          "input_top_logprobs", "input_token_ids_logprobs"};

absl::Status Unfit(std::string_view why) {
  return Error(absl::StatusCode::kFailedPrecondition, "", why);
}

absl::Status Malformed() {
  return Error(absl::StatusCode::kInternal, "ENGINE_REPLY_INVALID",
               "the engine's reply does not list the tokens that it generated");
}

template <size_t N>
absl::Status OnlyKnown(const Fields& fields, const std::string_view (&known)[N]) {
  for (const JsonField& field : fields) {
    if (field.value.kind == JsonKind::kNull) continue;
    if (std::find(std::begin(known), std::end(known), field.key) != std::end(known)) continue;
    // It is told in a head, where a name with line ends would begin another field, or a reply.
    return Unfit(IsToken(field.key) ? field.key.substr(0, 64) : "an unknown field");
  }
  return absl::OkStatus();
}

// Without its first and last byte: what stands in a list or a string.
std::string_view Inside(const PaddedBody& body, const JsonField& field) {
  std::string_view text = body.Text(field.value);
  text.remove_prefix(1);
  text.remove_suffix(1);
  return text;
}

bool IsBlank(std::string_view text) {
  return text.find_first_not_of(" \t\r\n") == std::string_view::npos;
}

// Either may be empty.
void JoinLists(const PaddedBody& before, const JsonField* first, const PaddedBody& reply,
               const JsonField* second, std::vector<Edit>* edits) {
  if (first == nullptr || second == nullptr || first->value.kind != JsonKind::kArray ||
      second->value.kind != JsonKind::kArray || IsBlank(Inside(before, *first))) {
    return;
  }
  std::string head(Inside(before, *first));
  if (!IsBlank(Inside(reply, *second))) head += ',';
  edits->push_back({second->value.offset + 1, 0, std::move(head)});
}

absl::Status ContinueMeta(const PaddedBody& before, const JsonField& first, const PaddedBody& reply,
                          const JsonField& second, std::vector<Edit>* edits) {
  LORRY_ASSIGN_OR_RETURN(const Fields old, ObjectFields(before, first.value));
  LORRY_ASSIGN_OR_RETURN(const Fields now, ObjectFields(reply, second.value));
  const std::optional<uint64_t> tokens = WholeNumber(before, old, "completion_tokens");
  if (!tokens || !WholeNumber(reply, now, "completion_tokens")) return Malformed();
  for (const std::string_view key : kCounts) {
    const std::optional<uint64_t> was = WholeNumber(before, old, key);
    const std::optional<uint64_t> is = WholeNumber(reply, now, key);
    if (!was || !is) continue;
    const JsonRange& at = FindField(now, key)->value;
    edits->push_back({at.offset, at.length, std::to_string(*was + *is)});
  }
  for (const std::string_view key : kByToken) {
    JoinLists(before, FindField(old, key), reply, FindField(now, key), edits);
  }
  // What was aborted in SGLang's queue tells nothing of a prompt that was never computed, and without
  // tokens its continuation has the same prompt.
  if (*tokens == 0) return absl::OkStatus();
  for (const std::string_view key : kOfPrompt) {
    const JsonField* was = FindField(old, key);
    const JsonField* is = FindField(now, key);
    if (was == nullptr || is == nullptr) continue;
    edits->push_back({is->value.offset, is->value.length, std::string(before.Text(was->value))});
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ResumePlan> PlanResume(const BodyFacts& facts, const PaddedBody& body) {
  if (facts.batch > 0) return Unfit("a batch");
  if (facts.n > 1) return Unfit("n > 1");
  LORRY_ASSIGN_OR_RETURN(const Fields fields, ObjectFields(body));
  ResumePlan plan;
  const JsonField* ids = FindField(fields, "input_ids");
  if (ids == nullptr || ids->value.kind != JsonKind::kArray) return Unfit("no input_ids");
  plan.prompt = ids->value;
  LORRY_RETURN_IF_ERROR(OnlyKnown(fields, kFields));
  const JsonField* params = FindField(fields, "sampling_params");
  if (params == nullptr || params->value.kind != JsonKind::kObject)
    return Unfit("no max_new_tokens");
  LORRY_ASSIGN_OR_RETURN(const Fields sampling, ObjectFields(body, params->value));
  LORRY_RETURN_IF_ERROR(OnlyKnown(sampling, kSampling));
  const JsonField* most = FindField(sampling, "max_new_tokens");
  const auto most_tokens = most == nullptr ? std::nullopt : WholeNumber(body, most->value);
  if (!most_tokens) return Unfit("no max_new_tokens");
  plan.most = most->value;
  plan.most_tokens = *most_tokens;
  return plan;
}

absl::StatusOr<Generated> ReadGenerated(const PaddedBody& reply) {
  LORRY_ASSIGN_OR_RETURN(const Fields fields, ObjectFields(reply));
  const JsonField* ids = FindField(fields, "output_ids");
  const JsonField* meta = FindField(fields, "meta_info");
  if (ids == nullptr || ids->value.kind != JsonKind::kArray || meta == nullptr) return Malformed();
  Generated out;
  LORRY_ASSIGN_OR_RETURN(const Fields inner, ObjectFields(reply, meta->value));
  out.ids = Inside(reply, *ids);
  const auto commas = static_cast<uint64_t>(std::count(out.ids.begin(), out.ids.end(), ','));
  const uint64_t listed = IsBlank(out.ids) ? 0 : commas + 1;
  out.tokens = WholeNumber(reply, inner, "completion_tokens").value_or(listed);
  out.lists_all = out.tokens == listed;
  const JsonField* finish = FindField(inner, "finish_reason");
  out.is_over = finish != nullptr && finish->value.kind != JsonKind::kNull;
  if (!out.is_over || finish->value.kind != JsonKind::kObject) return out;
  LORRY_ASSIGN_OR_RETURN(const Fields reason, ObjectFields(reply, finish->value));
  const JsonField* type = FindField(reason, "type");
  out.is_aborted = type != nullptr && reply.Text(type->value) == "\"abort\"";
  return out;
}

std::vector<Edit> ContinuationEdits(const ResumePlan& plan, const PaddedBody& body,
                                    const Generated& before) {
  if (before.tokens == 0) return {};
  const bool empty = IsBlank(body.Text({plan.prompt.offset + 1, plan.prompt.length - 2}));
  return {{plan.prompt.offset + plan.prompt.length - 1, 0, (empty ? "" : ",") + before.ids},
          {plan.most.offset, plan.most.length, std::to_string(plan.most_tokens - before.tokens)}};
}

absl::StatusOr<std::string> Continued(const PaddedBody& before, std::string reply) {
  const PaddedBody body(std::move(reply));
  LORRY_ASSIGN_OR_RETURN(const Fields old, ObjectFields(before));
  LORRY_ASSIGN_OR_RETURN(const Fields now, ObjectFields(body));
  const JsonField* was = FindField(old, "meta_info");
  const JsonField* is = FindField(now, "meta_info");
  if (was == nullptr || is == nullptr) return Malformed();
  std::vector<Edit> edits;
  LORRY_RETURN_IF_ERROR(ContinueMeta(before, *was, body, *is, &edits));
  JoinLists(before, FindField(old, "output_ids"), body, FindField(now, "output_ids"), &edits);
  const JsonField* text = FindField(old, "text");
  const JsonField* more = FindField(now, "text");
  if (text != nullptr && more != nullptr && text->value.kind == JsonKind::kString &&
      more->value.kind == JsonKind::kString) {
    edits.push_back({more->value.offset + 1, 0, std::string(Inside(before, *text))});
  }
  return ApplyEdits(body.view(), std::move(edits));
}

}  // namespace lorry::door
