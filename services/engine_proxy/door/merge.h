// Puts the replies of n single requests together into the one reply that n > 1 would have had. Each
// of the n asked for all prompts of a batch. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace lorry::door {

// SGLang numbers sample s of prompt p as p * n + s (tokenizer_manager.py, _handle_batch_request).
struct Samples {
  size_t n = 1;
  size_t batch = 0;  // 0: one prompt, not in a list
  size_t prompts() const { return batch == 0 ? 1 : batch; }
  size_t NumberOf(size_t prompt, size_t sample) const { return prompt * n + sample; }
};

// SGLang /generate answers n > 1 with a list. INTERNAL ENGINE_REPLY_INVALID when a reply is not of
// that form.
absl::StatusOr<std::string> MergeGenerate(std::vector<std::string> replies, const Samples& of);

// OpenAI: one list of choices, numbered; usage with the tokens of all. Everything else is the first
// reply's, byte for byte. INTERNAL ENGINE_REPLY_INVALID likewise.
absl::StatusOr<std::string> MergeOpenAi(std::vector<std::string> replies, const Samples& of);

}  // namespace lorry::door
