// SGLang's replies, 0.5.9 to 0.5.23.
#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "lib/base/digest.h"
#include "lib/base/error.h"
#include "services/engine_proxy/engines/wire.h"

namespace lorry::engines {
namespace {

// `startup_time` holds measured durations of this start: no time of day, but never the same twice.
// The members that name the process (none today) would come for free.
BootId BootOf(const Json& info) {
  const Json& startup = MemberOf(info, "startup_time");
  if (startup.is_null()) return BootId();
  return BootId("sglang-" + ToHex(HashSha256(startup.dump())).substr(0, 16));
}

using Release = std::array<int, 3>;

// False of what is no number: 0.5.23, 0.5.23.post1.
bool IsSince(absl::string_view version, const Release& first) {
  const std::vector<absl::string_view> parts = absl::StrSplit(version, absl::ByAnyChar(".+-"));
  Release have = {};
  for (size_t i = 0; i < have.size(); ++i) {
    if (i >= parts.size() || !absl::SimpleAtoi(parts[i], &have[i])) return false;
  }
  return have >= first;
}

// Attention groups that share one registry were replicas to releases before `attn_dp_size`, and could
// load adapters from 0.5.17 on.
bool LoadsOnReplicas(const Json& info) {
  constexpr Release kFirst = {0, 5, 17};
  return BoolIn(info, "enable_dp_attention") && !info.contains("attn_dp_size") &&
         IsSince(StringIn(info, "version"), kFirst);
}

// "DP-attention LoRA requires pinned adapters" (lora/lora_manager.py, 0.5.23).
bool PinsAdapters(const Json& info) { return IntegerIn(info, "attn_dp_size").value_or(1) > 1; }

std::vector<Problem> ProblemsOf(const Json& info) {
  std::vector<Problem> problems;
  if (!BoolIn(info, "enable_lora")) problems.push_back(LoraDisabled(fleet::EngineKind::kSglang));
  if (IntegerIn(info, "dp_size").value_or(1) > 1 && !LoadsOnReplicas(info)) {
    problems.push_back({"ENGINE_DP_UNSUPPORTED",
                        "start one SGLang per data-parallel replica (--dp-size 1), each with its "
                        "own proxy: SGLang "
                        "refuses to load adapters at run time with --dp-size above 1"});
  }
  if (PinsAdapters(info) && CountIn(info, "max_loras_per_batch") == 1) {
    problems.push_back(
        {"ENGINE_DP_UNSUPPORTED",
         "start SGLang with --max-loras-per-batch 2 or more: with --attn-dp-size above 1 adapters "
         "are pinned, which one slot of its memory never is"});
  }
  if (IntegerIn(info, "tokenizer_worker_num").value_or(1) > 1) {
    problems.push_back(
        {"ENGINE_TOKENIZER_WORKERS",
         "start SGLang with --tokenizer-worker-num 1: each worker has a registry of its own, and a "
         "loaded adapter is seen by one of them"});
  }
  if (StringIn(info, "load_format") == "dummy") {
    problems.push_back(
        {"ENGINE_LOAD_FORMAT",
         "start SGLang without --load-format dummy, with which it cannot load adapters from disk"});
  }
  if (BootOf(info).empty()) {
    problems.push_back({"ENGINE_VERSION_UNSUPPORTED",
                        "use SGLang 0.5.9 or later: this one does not report startup_time, by "
                        "which a restart is seen"});
  }
  return problems;
}

// Since 0.5.23 the tokenizer's process lets go of an adapter also for a request that is aborted
// while it waits (_handle_abort_req in managers/tokenizer_manager.py); before, the adapter could
// never be unloaded again (sglang#34205).
bool ReleasesWhatItAborts(absl::string_view version) {
  constexpr Release kFirst = {0, 5, 23};
  return IsSince(version, kFirst);
}

// Each is [log-probability, id, text]. SGLang writes null for NaN and for what is infinite.
std::optional<double> LogprobIn(const Json& told) {
  if (!told.is_array() || told.empty()) return std::nullopt;
  if (told[0].is_null()) return std::numeric_limits<double>::quiet_NaN();
  if (!told[0].is_number()) return std::nullopt;
  return told[0].get<double>();
}

}  // namespace

absl::StatusOr<EngineFacts> ParseSglangInfo(const HttpReply& reply) {
  if (reply.status != 200) return StatusOfRefusal("GET /server_info", reply);
  const Json info = ParseJson(reply.body);
  if (!info.is_object() || !info.contains("enable_lora")) {
    return Error(absl::StatusCode::kFailedPrecondition, "ENGINE_UNKNOWN",
                 "GET /server_info is not SGLang's; is the address the engine's own?");
  }
  EngineFacts facts;
  facts.boot = BootOf(info);
  facts.version = StringIn(info, "version");
  facts.base_models = {StringIn(info, "served_model_name")};
  facts.model_path = StringIn(info, "model_path");
  facts.model_revision = StringIn(info, "revision");
  facts.quantization = StringIn(info, "quantization");
  facts.nodes = std::max<uint64_t>(1, CountIn(info, "nnodes"));
  facts.cumulative_streams = !BoolIn(info, "incremental_streaming_output");
  facts.limits.kind = fleet::EngineKind::kSglang;
  facts.limits.rank_limit = CountIn(info, "max_lora_rank");
  facts.limits.slots = CountIn(info, "max_loaded_loras");  // null: not bounded
  facts.limits.batch_slots = CountIn(info, "max_loras_per_batch");
  facts.pins_adapters = PinsAdapters(info);
  if (facts.pins_adapters && facts.limits.batch_slots > 0)
    facts.limits.slots = facts.limits.batch_slots - 1;  // which is never more than may be loaded
  std::vector<std::string>& modules = facts.limits.engine_modules;
  modules = NamesIn(info, "lora_target_modules");
  if (std::binary_search(modules.begin(), modules.end(), "all")) modules.clear();
  facts.aborts_waiting = ReleasesWhatItAborts(facts.version);
  facts.problems = ProblemsOf(info);
  // `asleep` stays unsaid: SGLang keeps which memory was released inside its scheduler, and no route
  // tells it (0.5.23). Loads and probes fail meanwhile, and are tried again.
  return facts;
}

absl::StatusOr<Occupancy> ParseSglangOccupancy(const HttpReply& reply) {
  if (reply.status != 200) return StatusOfRefusal("GET /v1/loads", reply);
  const Json body = ParseJson(reply.body);
  const Json& rows = MemberOf(body, "loads");
  if (!rows.is_array() || rows.empty()) {
    return Error(absl::StatusCode::kFailedPrecondition, "ENGINE_UNKNOWN",
                 "GET /v1/loads lists no load");
  }
  Occupancy load;
  for (const Json& row : rows) {
    load.running += CountIn(row, "num_running_reqs");
    load.waiting += CountIn(row, "num_waiting_reqs");
    const Json& at = MemberOf(row, "timestamp");
    if (at.is_number()) load.worked = load.worked.value_or(0) + at.get<double>();
  }
  return load;
}

absl::StatusOr<ProbeReply> ParseSglangToken(const HttpReply& reply) {
  if (reply.status != 200) return StatusOfProbe(reply);
  const Json body = ParseJson(reply.body);
  const Json& ids = MemberOf(body, "output_ids");
  if (!ids.is_array() || ids.empty() || !ids[0].is_number_integer()) {
    return NoToken(reply);
  }
  ProbeReply token;
  for (const char* key : {"input_token_logprobs", "output_token_logprobs"}) {
    const Json& logprobs = MemberOf(MemberOf(body, "meta_info"), key);
    if (!logprobs.is_array()) return token;
    for (const Json& logprob : logprobs) {
      if (const auto said = LogprobIn(logprob)) token.logprobs.push_back(*said);
    }
  }
  return token;
}

absl::StatusOr<std::vector<double>> ParseSglangReference(const HttpReply& reply,
                                                         const peft::ReferencePrompt& prompt) {
  std::vector<double> logprobs;
  if (reply.status >= 400 && reply.status < 500) return logprobs;
  if (reply.status != 200) return StatusOfProbe(reply);
  const Json body = ParseJson(reply.body);
  const Json& told = MemberOf(MemberOf(body, "meta_info"), "input_token_logprobs");
  if (!told.is_array() || told.size() != prompt.tokens.size()) return logprobs;
  for (size_t i = 1; i < prompt.tokens.size(); ++i) {  // the first token of a prompt has none
    const Json& its = told[i];
    const std::optional<double> said = LogprobIn(its);
    const bool is_said = said.has_value() && its.size() >= 2 && its[1].is_number_integer() &&
                         its[1] == prompt.tokens[i];
    if (!is_said) return std::vector<double>();
    logprobs.push_back(*said);
  }
  return logprobs;
}

}  // namespace lorry::engines
