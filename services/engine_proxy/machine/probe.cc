#include "services/engine_proxy/machine/probe.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"

namespace lorry::proxy {
namespace {

// bf16, in which most engines compute, has eight bits: what changes every weight's part of a sum by
// less than 1 / 2^8 may be rounded away, and what changes it by more may not.
constexpr uint32_t kMustDifferPpm = 1'000'000 / 256;

// Log-probabilities of the same prompt, computed twice in fp32, differ by less on both engines.
constexpr double kSameLogprob = 1e-5;

// Two runs show some of the noise that a busy engine's batches make, and seldom the most of it.
constexpr double kNoiseMargin = 2;

// What has differed by so many times as much as would be noise now cannot have been noise.
constexpr double kPlainly = 4;

double MostOfNoise(const fleet::ProbeComparison& compared) {
  return kNoiseMargin * compared.noise + kSameLogprob;
}

bool Differs(const fleet::ProbeComparison& compared) {
  return compared.difference > MostOfNoise(compared);
}

bool DifferedPlainly(const fleet::ProbeComparison& compared, uint32_t apart_ppm) {
  return apart_ppm / 1e6 > kPlainly * MostOfNoise(compared);
}

std::string Measured(const std::optional<fleet::ProbeComparison>& compared) {
  if (!compared.has_value())
    return "there was nothing to compare: the engine gives no log-probabilities, or, on a CPU, was "
           "busy with adapters whenever the base model was to be asked";
  return absl::StrCat("its log-probabilities are the base model's (they differ by ",
                      compared->difference, ", two runs of the base model by ", compared->noise,
                      ")");
}

// Whether the base model's answer is of interest. A version whose B are all zero answers as the
// base model does, and is right to.
bool IsComparedWithBase(fleet::ProbeMode rule, const fleet::VersionTraits& traits) {
  const bool asks = rule == fleet::ProbeMode::kAuto || rule == fleet::ProbeMode::kDiffers;
  return asks && !traits.all_b_zero;
}

ProbeVerdict NotFinite(const char* whose) {
  return {
      .passes = false,
      .reason = "PROBE_NOT_FINITE",
      .detail = absl::StrCat("its log-probabilities of ", whose,
                             " are no numbers: the engine's arithmetic overflows with it; serve "
                             "the model in bfloat16, and look at the adapter's norms")};
}

ProbeVerdict JudgeComparison(fleet::ProbeMode rule, const fleet::VersionTraits& traits,
                             const std::optional<fleet::ProbeComparison>& compared,
                             uint32_t apart_ppm) {
  if (compared.has_value() && !std::isfinite(compared->difference))
    return NotFinite("a prompt for which the base model's are");
  if (compared.has_value() && Differs(*compared)) return {};
  if (compared.has_value() && DifferedPlainly(*compared, apart_ppm)) {
    return {.passes = false,
            .reason = "PROBE_SAME_AS_BASE",
            .detail = absl::StrCat(Measured(compared), ", and differed by ", apart_ppm / 1e6,
                                   " before: the engine does not apply it any more")};
  }
  const bool must = rule == fleet::ProbeMode::kDiffers || traits.relative_norm_ppm > kMustDifferPpm;
  if (must && compared.has_value()) {
    return {.passes = false,
            .reason = "PROBE_SAME_AS_BASE",
            .detail = absl::StrCat(Measured(compared),
                                   ": the engine seems to have applied none of its modules; check "
                                   "that it was trained on this model")};
  }
  const std::string why = traits.relative_norm_ppm == 0
                              ? "the trainer did not say by how much it changes the model"
                              : absl::StrCat("it changes the model by ", traits.relative_norm_ppm,
                                             " millionths, which may be too little to be seen");
  return {.passes = true,
          .reason = "UNPROVEN",
          .detail = absl::StrCat(Measured(compared), ", and ", why)};
}

ProbeVerdict TooFar(const fleet::ReferenceGap& gap, double limit) {
  const std::string base =
      gap.base.has_value() ? absl::StrCat("; the base model is ", *gap.base, " from them") : "";
  return {.passes = false,
          .reason = "PROBE_GAP",
          .detail = absl::StrCat(
              "its log-probabilities of the trainer's reference are ", gap.mean,
              " from the trainer's in the mean, ", gap.max, " at most", base, ", and probe_gap is ",
              limit,
              ": the engine computes something else than was trained; compare base model, its "
              "quantisation and the adapter's alpha on both sides, or raise probe_gap if this is "
              "what this engine's arithmetic loses")};
}

}  // namespace

fleet::ProbeQuestion QuestionFor(const ProbeRules& rules, const fleet::VersionTraits& traits,
                                 const peft::Reference& reference) {
  using fleet::ProbeKind;
  if (rules.rule == fleet::ProbeMode::kPresence) return {.kind = ProbeKind::kPresence};
  if (rules.rule == fleet::ProbeMode::kAuto && !reference.empty())
    return {.kind = ProbeKind::kReference, .reference = reference};
  const bool compares = IsComparedWithBase(rules.rule, traits);
  return {.kind = compares ? ProbeKind::kCompare : ProbeKind::kToken};
}

ProbeVerdict JudgeProbe(const ProbeRules& rules, const fleet::VersionTraits& traits,
                        const fleet::ProbeAnswer& answer, uint32_t apart_ppm) {
  if (const std::optional<fleet::ReferenceGap>& gap = answer.gap; gap.has_value()) {
    const double limit = rules.gap_ppm / 1e6;
    if (!std::isfinite(gap->mean)) return NotFinite("the trainer's reference");
    if (limit > 0 && gap->mean > limit) return TooFar(*gap, limit);
    if (TellsFromBase(*gap)) return {};
  }
  if (!IsComparedWithBase(rules.rule, traits)) return {};
  return JudgeComparison(rules.rule, traits, answer.compared, apart_ppm);
}

uint32_t ApartPpm(const fleet::ProbeAnswer& answer) {
  if (!answer.compared.has_value() || !Differs(*answer.compared)) return 0;
  constexpr double kMost = std::numeric_limits<uint32_t>::max();
  return static_cast<uint32_t>(std::min(answer.compared->difference * 1e6, kMost));
}

}  // namespace lorry::proxy
