#include "services/engine_proxy/engines/probe.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "lib/base/error.h"

namespace lorry::engines {
namespace {

// Greedy log-probabilities of one prompt repeat to about 1e-5 on both engines in fp32. In bf16
// batching may move them by some 1e-2, but a probe and its reference run alone, one after the
// other.
constexpr double kSameLogprob = 1e-5;

}  // namespace

Json ProbePrompt() { return Json::array({1, 2, 3, 4, 5, 6, 7, 8}); }

absl::Status JudgeAlreadyLoaded(const Engine::Listing& listing, const EngineName& name,
                                const std::string& path) {
  const auto found = listing.find(name);
  if (found == listing.end()) {
    return Error(
        absl::StatusCode::kUnavailable, "ENGINE_LOAD_UNSETTLED",
        absl::StrCat(name.value,
                     " was called already loaded and is not listed; another load or unload of it "
                     "is under way, ask again"));
  }
  if (found->second == path) return absl::OkStatus();
  return Error(absl::StatusCode::kAlreadyExists, "ENGINE_NAME_TAKEN",
               absl::StrCat(name.value, " is loaded from ", found->second, " and not from ", path,
                            "; something else loads adapters into this engine"));
}

absl::Status JudgePresence(const Engine::Listing& listing, const EngineName& name) {
  if (listing.count(name) != 0) return absl::OkStatus();
  return Error(absl::StatusCode::kNotFound, "ENGINE_NAME_UNKNOWN",
               absl::StrCat("the engine does not list ", name.value));
}

absl::Status JudgeDiffers(const EngineName& name, const ProbeToken& adapter,
                          const ProbeToken& base) {
  if (adapter.token != base.token) return absl::OkStatus();
  if (adapter.logprob && base.logprob &&
      !(std::abs(*adapter.logprob - *base.logprob) <= kSameLogprob)) {
    return absl::OkStatus();
  }
  return Error(
      absl::StatusCode::kFailedPrecondition, "PROBE_SAME_AS_BASE",
      absl::StrCat(name.value,
                   " answers exactly as the base model does: the engine may have applied none of "
                   "its modules (names of another model?)"));
}

absl::Status NameUnknown(const std::string& name, const HttpReply& reply) {
  return Error(absl::StatusCode::kNotFound, "ENGINE_NAME_UNKNOWN",
               absl::StrCat("the engine does not know ", name, ": ", ErrorText(reply)));
}

}  // namespace lorry::engines
