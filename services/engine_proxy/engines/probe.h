// What a probe's answers mean, the same for both kinds. Pure functions.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "services/engine_proxy/engines/wire.h"

namespace lorry::engines {

// Token ids that every vocabulary has; several, so that attention has something to look at, and so
// odd a text that the model is sure of none of them: a probability of almost 1 would stay what it
// is whatever an adapter does.
Json ProbePrompt();

// A load was answered with "already loaded": OK when the listing shows our path, ALREADY_EXISTS
// ENGINE_NAME_TAKEN when it shows another one, FAILED_PRECONDITION ENGINE_LOAD_UNSETTLED when the
// name has left the listing meanwhile.
absl::Status JudgeAlreadyLoaded(const Engine::Listing& listing, const EngineName& name,
                                const std::string& path);

absl::Status JudgePresence(const Engine::Listing& listing, const EngineName& name);

// Two answers of one model to the probe's prompt. That they differ is noise: what a busy engine's
// batches do to the arithmetic.
struct ProbePair {
  ProbeReply first, second;
};
// Nothing when one of the four lacks log-probabilities. The difference is NaN where the base model's
// are numbers and the adapter's are not.
std::optional<fleet::ProbeComparison> Compare(ProbePair base, ProbePair adapter);

// `answered`: the engine's log-probabilities of each prompt. Nothing when it did not give all. The
// mean is no finite number where one of them is none.
std::optional<fleet::ReferenceGap> GapTo(const peft::Reference& reference,
                                         const std::vector<std::vector<double>>& answered);

absl::Status NameUnknown(const std::string& name, const HttpReply& reply);

}  // namespace lorry::engines
