#include "lib/peft/reference.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "lib/base/error.h"
#include "lib/base/strings.h"
#include "lib/peft/json.h"
#include "lib/peft/refusal.h"

namespace lorry::peft {
namespace {

using nlohmann::json;

// No model's vocabulary is larger; engines read token ids as 32-bit integers.
constexpr uint32_t kTokenMax = (uint32_t{1} << 31) - 1;
// A token that is less likely than e^-1000 is one that the model cannot say.
constexpr double kLogprobMin = -1000;

absl::Status Malformed(std::string_view why) {
  return Refuse("IMAGE_MALFORMED",
                absl::StrCat("the image's metadata gives ", ToAbsl(kReferenceKey), ", which ",
                             ToAbsl(why), "; publish with lorry.Reference, or without one"));
}

// `size` numbers of [kLogprobMin, 0].
absl::StatusOr<std::vector<double>> Logprobs(const json& list, size_t size) {
  const bool is_full = list.is_array() && list.size() == size;
  if (!is_full) return Malformed("has not one log-probability for each token but the first");
  std::vector<double> logprobs;
  for (const json& item : list) {
    const double logprob = item.is_number() ? item.get<double>() : 1;
    if (!(logprob <= 0 && logprob >= kLogprobMin))
      return Malformed("has a log-probability that is none");
    logprobs.push_back(logprob);
  }
  return logprobs;
}

absl::StatusOr<std::vector<uint32_t>> Tokens(const json& list) {
  const bool fits = list.is_array() && list.size() >= 2 && list.size() <= kReferenceTokensMax;
  if (!fits)
    return Malformed(
        absl::StrCat("has a prompt that is not 2 to ", kReferenceTokensMax, " tokens"));
  std::vector<uint32_t> tokens;
  for (const json& item : list) {
    const std::optional<uint32_t> token = WholeNumber(item);
    if (!token || *token > kTokenMax) return Malformed("has a token id that is none");
    tokens.push_back(*token);
  }
  return tokens;
}

absl::StatusOr<ReferencePrompt> Prompt(const json& fields) {
  if (!fields.is_object()) return Malformed("has a prompt that is no object");
  // What is missing reads as null, which neither of them takes.
  const auto field = [&](const char* name) { return fields.value(name, json()); };
  ReferencePrompt prompt;
  LORRY_ASSIGN_OR_RETURN(prompt.tokens, Tokens(field("tokens")));
  const size_t known = prompt.tokens.size() - 1;
  LORRY_ASSIGN_OR_RETURN(prompt.logprobs, Logprobs(field("logprobs"), known));
  if (fields.contains("base")) {
    LORRY_ASSIGN_OR_RETURN(prompt.base, Logprobs(field("base"), known));
  }
  return prompt;
}

}  // namespace

absl::StatusOr<Reference> ParseReference(std::string_view text) {
  if (text.size() > kReferenceBytesMax)
    return Malformed(absl::StrCat("is longer than ", kReferenceBytesMax, " bytes"));
  const absl::StatusOr<json> whole = ParseJsonObject(text, "it");
  if (!whole.ok()) return Malformed("is no JSON object that can be read");
  const json prompts = whole->value("prompts", json());
  const bool fits =
      prompts.is_array() && !prompts.empty() && prompts.size() <= kReferencePromptsMax;
  if (!fits) return Malformed(absl::StrCat("has not 1 to ", kReferencePromptsMax, " prompts"));
  Reference reference;
  for (const json& fields : prompts) {
    LORRY_ASSIGN_OR_RETURN(ReferencePrompt prompt, Prompt(fields));
    reference.push_back(std::move(prompt));
  }
  return reference;
}

uint32_t LargestToken(const Reference& reference) {
  uint32_t largest = 0;
  for (const ReferencePrompt& prompt : reference)
    largest = std::max(largest, *std::max_element(prompt.tokens.begin(), prompt.tokens.end()));
  return largest;
}

}  // namespace lorry::peft
