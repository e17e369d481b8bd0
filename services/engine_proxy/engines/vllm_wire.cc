// vLLM's replies, 0.27 to 0.32, Python frontend.
#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "lib/base/error.h"
#include "lib/base/strings.h"
#include "services/engine_proxy/engines/wire.h"

namespace lorry::engines {
namespace {

// "name{labels} value" or "name value [timestamp]"; nullopt for comments, other metrics and values
// that are no number.
std::optional<double> ValueOfSample(absl::string_view line, absl::string_view name) {
  if (line.substr(0, name.size()) != name) return std::nullopt;
  line.remove_prefix(name.size());
  if (!line.empty() && line[0] == '{') {
    const size_t end = line.rfind("} ");
    if (end == absl::string_view::npos) return std::nullopt;
    line.remove_prefix(end + 1);
  }
  if (line.empty() || line[0] != ' ') return std::nullopt;
  line.remove_prefix(1);
  double value = 0;
  if (!absl::SimpleAtod(line.substr(0, line.find(' ')), &value)) return std::nullopt;
  return value;
}

}  // namespace

std::optional<double> SumOfMetric(std::string_view exposition, std::string_view name) {
  std::optional<double> sum;
  for (absl::string_view line : absl::StrSplit(ToAbsl(exposition), '\n')) {
    if (const auto value = ValueOfSample(line, ToAbsl(name))) sum = sum.value_or(0) + *value;
  }
  return sum;
}

absl::StatusOr<EngineLoad> ParseVllmLoad(const HttpReply& reply) {
  if (reply.status != 200) return StatusOfRefusal("GET /metrics", reply);
  const auto running = SumOfMetric(reply.body, "vllm:num_requests_running");
  const auto waiting = SumOfMetric(reply.body, "vllm:num_requests_waiting");
  if (!running || !waiting || *running < 0 || *waiting < 0) {
    return Error(
        absl::StatusCode::kFailedPrecondition, "ENGINE_METRICS_DISABLED",
        "GET /metrics has no vllm:num_requests_running; start vLLM without --disable-log-stats");
  }
  return EngineLoad{static_cast<uint64_t>(*running), static_cast<uint64_t>(*waiting)};
}

absl::StatusOr<BootId> ParseVllmBoot(const HttpReply& reply) {
  if (reply.status != 200) return StatusOfRefusal("GET /metrics", reply);
  const auto started = SumOfMetric(reply.body, "process_start_time_seconds");
  if (!started) {
    return Error(absl::StatusCode::kFailedPrecondition, "ENGINE_VERSION_UNSUPPORTED",
                 "GET /metrics has no process_start_time_seconds, by which a restart is seen");
  }
  return BootId(absl::StrCat("vllm-", static_cast<int64_t>(*started * 1000)));
}

void AddVllmServerInfo(const HttpReply& reply, EngineFacts& facts) {
  if (reply.status != 200) return;
  const Json body = ParseJson(reply.body);
  const Json& config = MemberOf(body, "vllm_config");
  if (!config.is_object()) return;
  const Json& lora = MemberOf(config, "lora_config");
  if (!lora.is_object()) {
    facts.problems.push_back(LoraDisabled(fleet::EngineKind::kVllm));
    return;
  }
  facts.limits.rank_limit = CountIn(lora, "max_lora_rank");
  facts.limits.batch_slots = CountIn(lora, "max_loras");
  facts.limits.slots = CountIn(lora, "max_cpu_loras");
  if (facts.limits.slots == 0) facts.limits.slots = facts.limits.batch_slots;  // vLLM's own default
  facts.limits.engine_modules = NamesIn(lora, "target_modules");
}

absl::StatusOr<ProbeToken> ParseVllmToken(const HttpReply& reply) {
  if (reply.status != 200) return StatusOfRefusal("probe", reply);
  const Json body = ParseJson(reply.body);
  const Json& choices = MemberOf(body, "choices");
  const Json& usage = MemberOf(body, "usage");
  if (!choices.is_array() || choices.empty() ||
      IntegerIn(usage, "completion_tokens").value_or(0) < 1) {
    return NoToken(reply);
  }
  ProbeToken token{StringIn(choices[0], "text"), std::nullopt};
  const Json& logprobs = MemberOf(MemberOf(choices[0], "logprobs"), "token_logprobs");
  if (logprobs.is_array() && !logprobs.empty() && logprobs[0].is_number()) {
    token.logprob = logprobs[0].get<double>();
  }
  return token;
}

}  // namespace lorry::engines
