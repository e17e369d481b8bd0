// vLLM's replies, 0.27 to 0.32, Python frontend.
#include <algorithm>
#include <array>

#include "absl/strings/match.h"
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

// None of what is no count: nothing, NaN, a negative number, or more than a double tells exactly.
std::optional<uint64_t> CountOf(std::optional<double> value) {
  constexpr double kExactMax = uint64_t{1} << 53;
  if (!value || !(*value >= 0 && *value <= kExactMax)) return std::nullopt;
  return static_cast<uint64_t>(*value);
}

constexpr absl::string_view kRunning = "vllm:num_requests_running";
constexpr absl::string_view kWaiting = "vllm:num_requests_waiting";
// Declared where LoRA is on, whether or not it has samples yet.
constexpr absl::string_view kLoraInfo = "vllm:lora_requests_info";
constexpr absl::string_view kSleep = "vllm:engine_sleep_state";
constexpr absl::string_view kTokens[] = {"vllm:prompt_tokens_total",
                                         "vllm:generation_tokens_total"};
constexpr absl::string_view kStarted = "process_start_time_seconds";

bool IsDeclared(absl::string_view exposition, absl::string_view name) {
  return absl::StrContains(exposition, absl::StrCat("# TYPE ", name, " "));
}

// At any level of sleep, and until the last of its memory is back. The page of the dev routes for
// this, /is_sleeping, says true of an engine that is only paused, too.
// None where it has no such metric.
std::optional<bool> IsAsleep(absl::string_view exposition) {
  std::optional<bool> asleep;
  for (absl::string_view line : absl::StrSplit(exposition, '\n')) {
    const auto value = ValueOfSample(line, kSleep);
    if (!value.has_value() || !absl::StrContains(line, "sleep_state=\"awake\"")) continue;
    asleep = asleep.value_or(false) || *value == 0.0;
  }
  return asleep;
}

// The base model's config.json: an object, or what Python prints of one, `LlamaConfig {...}`.
std::string ConfigIn(const Json& model_config) {
  for (const char* key : {"hf_text_config", "hf_config"}) {
    const Json& config = MemberOf(model_config, key);
    if (config.is_object()) return config.dump();
    const std::string text = StringIn(model_config, key);
    if (const size_t begin = text.find('{'); begin != std::string::npos) return text.substr(begin);
  }
  return "";
}

// The text of `label` in a sample's line; empty where it has none.
absl::string_view LabelIn(absl::string_view sample, absl::string_view label) {
  const std::string begin = absl::StrCat(label, "=\"");
  const size_t at = sample.find(begin);
  if (at == absl::string_view::npos) return "";
  sample.remove_prefix(at + begin.size());
  return sample.substr(0, sample.find('"'));
}

// The number in `label="7"` of the first sample of `name`; 0 where there is none.
uint32_t CountInLabel(absl::string_view exposition, absl::string_view name,
                      absl::string_view label) {
  for (absl::string_view line : absl::StrSplit(exposition, '\n')) {
    uint32_t count = 0;
    if (ValueOfSample(line, name) && absl::SimpleAtoi(LabelIn(line, label), &count)) return count;
  }
  return 0;
}

bool IsSeenVersion(absl::string_view version) {
  constexpr int kLastMinorSeen = 32;
  int minor = 0;
  const std::vector<absl::string_view> parts = absl::StrSplit(version, '.');
  return parts.size() > 1 && parts[0] == "0" && absl::SimpleAtoi(parts[1], &minor) &&
         minor <= kLastMinorSeen;
}

// What is wrong with a vLLM on a CPU. Seen in 0.32.0; no release is known to mend it.
void AddCpuDefects(EngineFacts& facts) {
  if (facts.device != kCpu || !IsSeenVersion(facts.version)) return;
  // It applies the adapters to the logits of a prompt by the indices that the whole step has for
  // its sampled tokens: with a second request in the step the shapes differ, whatever adapters they
  // name, and the engine's core ends (_get_prompt_logprobs_dict in v1/worker/gpu_model_runner.py,
  // bgmv_shrink in lora/ops/torch_ops/lora_ops.py).
  facts.dies_of_prompt_logprobs = true;
  // The index of "no adapter", -1, means the last slot to torch: in a step that has a request for
  // an adapter, those for the base model get the weights of whichever adapter is in the last slot
  // of the batch (bgmv_expand, bgmv_shrink).
  facts.mixes_base = true;
}

size_t CountSamples(absl::string_view exposition, absl::string_view name) {
  size_t count = 0;
  for (absl::string_view line : absl::StrSplit(exposition, '\n')) {
    if (ValueOfSample(line, name)) ++count;
  }
  return count;
}

// The newest of two samples of kLoraInfo: each state of the adapters ever seen is a series of its
// own, and the time at which it was last so is its value. None of what is no sample of it.
absl::string_view Newer(absl::string_view state, absl::string_view line) {
  const std::optional<double> at = ValueOfSample(line, kLoraInfo);
  return at.has_value() && *at >= ValueOfSample(state, kLoraInfo).value_or(0) ? line : state;
}

// Whether a line, no sample of kLoraInfo, is read here.
bool IsRead(absl::string_view line) {
  if (IsDeclared(line, kRunning) || IsDeclared(line, kLoraInfo)) return true;
  return std::ranges::any_of(
      std::array{kRunning, kWaiting, kSleep, kTokens[0], kTokens[1], kStarted},
      [&](absl::string_view name) { return ValueOfSample(line, name).has_value(); });
}

// The adapters of running and waiting requests. Data-parallel engines write into the same
// series, so that each hides the others' adapters: nothing is known of theirs.
std::optional<std::set<EngineName>> BusyAdapters(absl::string_view exposition) {
  if (!IsDeclared(exposition, kLoraInfo) || CountSamples(exposition, kRunning) > 1)
    return std::nullopt;
  absl::string_view state;  // none: no request has named an adapter yet
  for (absl::string_view line : absl::StrSplit(exposition, '\n')) state = Newer(state, line);
  std::set<EngineName> names;
  for (const absl::string_view label : {"running_lora_adapters", "waiting_lora_adapters"}) {
    for (absl::string_view name : absl::StrSplit(LabelIn(state, label), ',', absl::SkipEmpty()))
      names.insert(EngineName(std::string(name)));
  }
  return names;
}

}  // namespace

std::optional<double> SumOfMetric(std::string_view exposition, std::string_view name) {
  std::optional<double> sum;
  for (absl::string_view line : absl::StrSplit(ToAbsl(exposition), '\n')) {
    if (const auto value = ValueOfSample(line, ToAbsl(name))) sum = sum.value_or(0) + *value;
  }
  return sum;
}

void SiftVllmMetrics(std::string& exposition) {
  std::string kept;
  absl::string_view state;
  size_t at = 0;
  for (size_t end; (end = exposition.find('\n', at)) != std::string::npos; at = end + 1) {
    const absl::string_view line(exposition.data() + at, end - at);
    if (absl::StartsWith(line, kLoraInfo)) {
      state = Newer(state, line);
    } else if (IsRead(line)) {
      absl::StrAppend(&kept, line, "\n");
    }
  }
  if (!state.empty()) absl::StrAppend(&kept, state, "\n");
  exposition.replace(0, at, kept);
}

absl::StatusOr<Occupancy> ParseVllmOccupancy(const HttpReply& reply) {
  if (reply.status != 200) return StatusOfRefusal("GET /metrics", reply);
  const auto running = CountOf(SumOfMetric(reply.body, ToStd(kRunning)));
  const auto waiting = CountOf(SumOfMetric(reply.body, ToStd(kWaiting)));
  if (!running || !waiting) return ToStatus(MetricsDisabled());
  Occupancy load{*running, *waiting, BusyAdapters(ToAbsl(reply.body))};
  for (const absl::string_view name : kTokens) {
    if (const auto tokens = SumOfMetric(reply.body, ToStd(name)))
      load.worked = load.worked.value_or(0) + *tokens;
  }
  return load;
}

absl::StatusOr<BootId> ParseVllmBoot(const HttpReply& reply) {
  if (reply.status != 200) return StatusOfRefusal("GET /metrics", reply);
  constexpr double kMsPerS = 1000;
  const auto started_s = SumOfMetric(reply.body, ToStd(kStarted));
  const auto started_ms = CountOf(started_s.value_or(-1) * kMsPerS);
  if (!started_ms) {
    return Error(absl::StatusCode::kFailedPrecondition, "ENGINE_VERSION_UNSUPPORTED",
                 "GET /metrics has no process_start_time_seconds, by which a restart is seen");
  }
  return BootId(absl::StrCat("vllm-", *started_ms));
}

void AddVllmMetrics(std::string_view exposition, EngineFacts& facts) {
  const absl::string_view text = ToAbsl(exposition);
  facts.asleep = IsAsleep(text);
  if (!IsDeclared(text, kRunning)) return facts.warnings.push_back(MetricsDisabled());
  const Problem off = LoraDisabled(fleet::EngineKind::kVllm);
  const bool is_said = std::count(facts.problems.begin(), facts.problems.end(), off) > 0;
  if (!IsDeclared(text, kLoraInfo) && !is_said) facts.problems.push_back(off);
  if (facts.limits.batch_slots == 0)
    facts.limits.batch_slots = CountInLabel(text, kLoraInfo, "max_lora");
}

void AddVllmServerInfo(const HttpReply& reply, EngineFacts& facts) {
  if (IsMissingRoute(reply)) return facts.warnings.push_back(DevModeOff());
  if (reply.status != 200) {
    return facts.warnings.push_back(
        {"ENGINE_REPLY_INVALID",
         absl::StrCat("GET /server_info, which tells --max-lora-rank and --max-cpu-loras, answers ",
                      reply.status, ": ", ErrorText(reply))});
  }
  facts.aborts_waiting = true;  // a route of dev mode, too
  const Json body = ParseJson(reply.body);
  const Json& config = MemberOf(body, "vllm_config");
  if (!config.is_object()) return;
  // DeviceConfig.device_type is computed, and what is computed is not told (config/device.py).
  facts.device = StringIn(MemberOf(config, "device_config"), "device");
  AddCpuDefects(facts);
  const Json& layout = MemberOf(config, "parallel_config");
  facts.nodes = std::max<uint64_t>(1, CountIn(layout, "nnodes"));
  // Not a public name; where it is gone the count is not told (config/parallel.py, 0.32).
  if (CountIn(layout, "_api_process_count") > 1) {
    facts.problems.push_back({"ENGINE_API_SERVERS",
                              "start vLLM with --api-server-count 1: each of its HTTP servers has "
                              "a registry of its own, "
                              "and a loaded adapter is seen by one of them"});
  }
  const Json& model = MemberOf(config, "model_config");
  facts.model_revision = StringIn(model, "revision");
  facts.quantization = StringIn(model, "quantization");
  facts.model_config = ConfigIn(model);
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

absl::StatusOr<ProbeReply> ParseVllmToken(const HttpReply& reply) {
  if (reply.status != 200) return StatusOfProbe(reply);
  const Json body = ParseJson(reply.body);
  const Json& choices = MemberOf(body, "choices");
  const Json& usage = MemberOf(body, "usage");
  if (!choices.is_array() || choices.empty() ||
      IntegerIn(usage, "completion_tokens").value_or(0) < 1) {
    return NoToken(reply);
  }
  ProbeReply token;
  const Json& answered = MemberOf(MemberOf(choices[0], "logprobs"), "token_logprobs");
  if (!answered.is_array()) return token;
  for (const Json& logprob : answered) {
    if (logprob.is_number()) token.logprobs.push_back(logprob.get<double>());
  }
  return token;
}

absl::StatusOr<std::vector<double>> ParseVllmReference(const HttpReply& reply,
                                                       const peft::ReferencePrompt& prompt) {
  std::vector<double> none;
  const bool is_untold = reply.status >= 400 && reply.status < 500 && !SaysNotFinite(reply);
  if (is_untold) return none;
  if (reply.status != 200) return StatusOfProbe(reply);
  const Json body = ParseJson(reply.body);
  const Json& choices = MemberOf(body, "choices");
  const size_t known = prompt.tokens.size() - 1;
  if (!choices.is_array() || choices.size() != known) return none;
  std::vector<std::optional<double>> told(known);
  for (const Json& choice : choices) {
    // In any order; the choice of an index is what follows that many tokens and one.
    const int64_t index = IntegerIn(choice, "index").value_or(-1);
    if (index < 0 || static_cast<size_t>(index) >= known) return none;
    const Json& steps = MemberOf(MemberOf(choice, "logprobs"), "top_logprobs");
    if (!steps.is_array() || steps.empty()) return none;
    const size_t at = static_cast<size_t>(index);
    const std::string token = absl::StrCat("token_id:", prompt.tokens[at + 1]);
    const Json& logprob = MemberOf(steps[0], token.c_str());
    if (logprob.is_number()) told[at] = logprob.get<double>();
  }
  std::vector<double> logprobs;
  for (const std::optional<double>& logprob : told) {
    if (!logprob.has_value()) return none;
    logprobs.push_back(*logprob);
  }
  return logprobs;
}

}  // namespace lorry::engines
