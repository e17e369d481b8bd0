// Reference log-probabilities: what the trainer's own model, with the adapter that it publishes,
// says of a few fixed prompts. A proxy asks its engine for the same before it serves the version:
// where both agree, an importance weight exp(trainer's - engine's) stays at 1. They travel in the
// image's metadata, so that the digest covers them. Pure functions, any thread. What is read is
// untrusted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace lorry::peft {

// The key in the image's metadata. Its value is JSON:
//   {"prompts": [{"tokens": [1, 5, 9], "logprobs": [-2.5, -0.25], "base": [-3.5, -0.5]}, ...]}
inline constexpr std::string_view kReferenceKey = "lorry.reference";

// 8 prompts of 64 tokens are some 500 log-probabilities: enough for a mean that says something, and
// few enough for an engine to compute between two requests.
inline constexpr size_t kReferencePromptsMax = 8;
inline constexpr size_t kReferenceTokensMax = 64;
// Of the JSON: 64 tokens of 8 prompts, each with three numbers of at most 20 characters.
inline constexpr size_t kReferenceBytesMax = 32u << 10;

struct ReferencePrompt {
  std::vector<uint32_t> tokens;
  // In nats, of every token but the first, given those before it: one fewer than `tokens`.
  std::vector<double> logprobs;
  // The same of the base model, without the adapter; empty where the trainer did not say.
  std::vector<double> base;
  bool operator==(const ReferencePrompt&) const = default;
};

using Reference = std::vector<ReferencePrompt>;  // empty: the trainer gave none

// IMAGE_MALFORMED: not as above.
absl::StatusOr<Reference> ParseReference(std::string_view json);

// The largest token of any prompt; 0 of none.
uint32_t LargestToken(const Reference& reference);

}  // namespace lorry::peft
