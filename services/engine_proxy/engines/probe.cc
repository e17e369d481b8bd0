#include "services/engine_proxy/engines/probe.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "lib/base/error.h"

namespace lorry::engines {
namespace {

constexpr double kNoNumber = std::numeric_limits<double>::quiet_NaN();

// The largest difference of one log-probability; both have as many, and numbers alone.
double Gap(const ProbeReply& a, const ProbeReply& b) {
  double gap = 0;
  for (size_t i = 0; i < a.logprobs.size(); ++i)
    gap = std::max(gap, std::abs(a.logprobs[i] - b.logprobs[i]));
  return gap;
}

bool AreNumbers(const ProbeReply& reply) {
  return std::ranges::all_of(reply.logprobs, [](double logprob) { return std::isfinite(logprob); });
}

}  // namespace

Json ProbePrompt() { return Json::array({1, 2, 3, 4, 5, 6, 7, 8}); }

absl::Status JudgeAlreadyLoaded(const Engine::Listing& listing, const EngineName& name,
                                const std::string& path) {
  const auto found = listing.find(name);
  if (found == listing.end()) {
    return Error(
        absl::StatusCode::kFailedPrecondition, "ENGINE_LOAD_UNSETTLED",
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

std::optional<fleet::ProbeComparison> Compare(ProbePair base, ProbePair adapter) {
  const size_t count = base.first.logprobs.size();
  for (const ProbeReply* reply : {&base.second, &adapter.first, &adapter.second}) {
    if (reply->logprobs.size() != count) return std::nullopt;
  }
  // Where the base model's answer is no number, the adapter's need not be one either.
  std::vector<bool> is_known(count);
  for (size_t i = 0; i < count; ++i)
    is_known[i] = std::isfinite(base.first.logprobs[i]) && std::isfinite(base.second.logprobs[i]);
  for (ProbeReply* reply : {&base.first, &base.second, &adapter.first, &adapter.second}) {
    size_t i = 0;
    std::erase_if(reply->logprobs, [&](double) { return !is_known[i++]; });
  }
  if (base.first.logprobs.empty()) return std::nullopt;
  if (!AreNumbers(adapter.first) || !AreNumbers(adapter.second)) {
    return fleet::ProbeComparison{.difference = kNoNumber, .noise = Gap(base.first, base.second)};
  }
  const auto differences = {Gap(adapter.first, base.first), Gap(adapter.first, base.second),
                            Gap(adapter.second, base.first), Gap(adapter.second, base.second)};
  return fleet::ProbeComparison{
      .difference = std::min(differences),
      .noise = std::max(Gap(base.first, base.second), Gap(adapter.first, adapter.second))};
}

std::optional<fleet::ReferenceGap> GapTo(const peft::Reference& reference,
                                         const std::vector<std::vector<double>>& answered) {
  fleet::ReferenceGap gap{.base = 0};
  size_t count = 0;
  for (size_t i = 0; i < reference.size(); ++i) {
    const auto& [tokens, logprobs, base] = reference[i];
    if (i >= answered.size() || answered[i].size() != logprobs.size()) return std::nullopt;
    if (base.empty()) gap.base.reset();
    for (size_t k = 0; k < logprobs.size(); ++k, ++count) {
      const double away = std::abs(answered[i][k] - logprobs[k]);
      gap.mean += away;
      gap.max = std::max(gap.max, away);
      if (gap.base.has_value()) *gap.base += std::abs(base[k] - logprobs[k]);
    }
  }
  if (count == 0) return std::nullopt;
  gap.mean /= static_cast<double>(count);
  if (gap.base.has_value()) *gap.base /= static_cast<double>(count);
  return gap;
}

absl::Status NameUnknown(const std::string& name, const HttpReply& reply) {
  return Error(absl::StatusCode::kNotFound, "ENGINE_NAME_UNKNOWN",
               absl::StrCat("the engine does not know ", name, ": ", ErrorText(reply)));
}

}  // namespace lorry::engines
