// What the engines' replies mean: pure functions over their bodies. No I/O, any thread.
//
// The engines name errors by text more than by code, and the codes move between releases (vLLM's
// 400s became 500s), so texts are looked for where they are known, and passed on where they are
// not.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "services/engine_proxy/engines/engine.h"
#include "services/engine_proxy/engines/http_client.h"

namespace lorry::engines {

using Json = nlohmann::json;

// A discarded value where `text` is no JSON; reading a member of it, or one of another type, gives
// the fallback.
Json ParseJson(std::string_view text);
std::string StringIn(const Json& object, const char* key);
std::optional<int64_t> IntegerIn(const Json& object, const char* key);
uint32_t CountIn(const Json& object, const char* key);                  // 0 where there is none
std::vector<std::string> NamesIn(const Json& object, const char* key);  // sorted
bool BoolIn(const Json& object, const char* key);
const Json& MemberOf(const Json& object, const char* key);

// The error's own words, wherever this body keeps them; at most 500 bytes, for messages.
std::string ErrorText(const HttpReply& reply);

// The status of a reply that is not the 200 it should be: UNAUTHENTICATED ENGINE_UNAUTHORIZED,
// FAILED_PRECONDITION ENGINE_LORA_DISABLED, otherwise INVALID_ARGUMENT ENGINE_REFUSED.
absl::Status StatusOfRefusal(std::string_view what, const HttpReply& reply);

// Of a load that was answered with anything else than 200, and not with "already loaded": the
// reasons of Engine::Load.
absl::Status StatusOfLoad(const EngineName& name, const HttpReply& reply);

// GET /v1/models, alike on both.
struct Models {
  std::vector<std::string> base_models;
  std::string root;      // of the base model: where it came from; its name where that is not told
  std::string owned_by;  // "sglang" or "vllm"
  Engine::Listing adapters;
};
absl::StatusOr<Models> ParseModels(const HttpReply& reply);

absl::StatusOr<EngineFacts> ParseSglangInfo(const HttpReply& server_info);
absl::StatusOr<Occupancy> ParseSglangOccupancy(const HttpReply& loads);
// The log-probabilities of the tokens that were answered, and on SGLang of the probe's prompt.
// Empty where the engine gives none; NaN where it gives what is no finite number, as of a prompt's
// first token.
struct ProbeReply {
  std::vector<double> logprobs;
};
// What one says to a 200 without a token: FAILED_PRECONDITION PROBE_FAILED.
absl::Status NoToken(const HttpReply& reply);
// And to anything else than 200: INVALID_ARGUMENT PROBE_NOT_FINITE where vLLM has no numbers for the
// log-probabilities, INTERNAL ENGINE_FAILED to a 5xx, as an engine answers that dies of the probe,
// otherwise as StatusOfRefusal.
absl::Status StatusOfProbe(const HttpReply& reply);
// Python's words for a NaN that it is to write as JSON: vLLM answers with a 400 or a 500 then, and
// SGLang writes null.
bool SaysNotFinite(const HttpReply& reply);
// Whether the engine ended a probe for others' sake, and not because of what it asks: its queue is
// full, or somebody has all requests aborted.
bool WasShed(fleet::EngineKind kind, const HttpReply& reply);
absl::StatusOr<ProbeReply> ParseSglangToken(const HttpReply& reply);

// The log-probabilities of a reference prompt's tokens but the first, as the engine has them; empty
// where it does not give all of them, or does not take the question (a 4xx): not the adapter's
// fault. NaN where it has no finite number. SGLang tells them of one prompt; vLLM is asked for the
// next token after each beginning of the prompt.
absl::StatusOr<std::vector<double>> ParseSglangReference(const HttpReply& reply,
                                                         const peft::ReferencePrompt& prompt);
absl::StatusOr<std::vector<double>> ParseVllmReference(const HttpReply& reply,
                                                       const peft::ReferencePrompt& prompt);

// The value of a metric summed over its series; nullopt when there is none.
std::optional<double> SumOfMetric(std::string_view exposition, std::string_view name);
// Leaves of a page of vLLM's metrics what is read here, and its last line, which may not be whole.
void SiftVllmMetrics(std::string& exposition);
absl::StatusOr<Occupancy> ParseVllmOccupancy(const HttpReply& metrics);
absl::StatusOr<BootId> ParseVllmBoot(const HttpReply& metrics);
// What a vLLM on a CPU calls its device.
inline constexpr std::string_view kCpu = "cpu";
// Adds limits, problems, its device and what it says of the base model; where there is no such page
// (vLLM has the route in dev mode alone), a warning of what stays unknown.
void AddVllmServerInfo(const HttpReply& server_info, EngineFacts& facts);
// Adds what the metrics tell, with and without dev mode: whether it sleeps, whether LoRA is on, and
// the batch's limit once a request has been scheduled.
void AddVllmMetrics(std::string_view exposition, EngineFacts& facts);
absl::StatusOr<ProbeReply> ParseVllmToken(const HttpReply& reply);

// True for the replies that mean "there is no such adapter", false for a missing route.
bool IsUnknownAdapter(fleet::EngineKind kind, const HttpReply& reply);
bool IsAlreadyLoaded(const HttpReply& reply);
// SGLang's word for a name that a load or an unload left on some of its ranks: it takes no load of
// that name until an unload of it has succeeded.
bool IsHalfUnloaded(const HttpReply& reply);
// 404 {"detail":"Not Found"}: the server has no such route, which is how it says that a feature is
// off.
bool IsMissingRoute(const HttpReply& reply);

// Each with the flag or the variable that repairs it.
Problem LoraDisabled(fleet::EngineKind kind);
Problem RuntimeLoraDisabled();
Problem DevModeOff();
Problem MetricsDisabled();
absl::Status ToStatus(const Problem& problem);  // FAILED_PRECONDITION

}  // namespace lorry::engines
