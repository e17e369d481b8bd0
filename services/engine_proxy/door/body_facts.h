// What the door must know of a request's body: which adapters it names, its batch, its ids, its n,
// and where they stand.
//
// Pure functions, any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/fleet/engine_name.h"
#include "services/engine_proxy/door/json_splice.h"
#include "services/engine_proxy/door/router.h"
#include "services/engine_proxy/door/routes.h"

namespace lorry::door {

// A batch in one request; SGLang's own limit is its queue. Bounds what one body makes the door
// allocate.
inline constexpr size_t kMaxBatch = 4096;
// An adapter's name has at most 63 bytes, a selector of it twice as many. References are kept with
// the last requests and quoted in errors, so they may not be as long as a body.
inline constexpr size_t kMaxReferenceBytes = 256;
// A client's own `rid`. One short `rid` of a batch is given back once for each of its prompts.
inline constexpr size_t kMaxIdBytes = 1024;
// The most requests at the engine that one body is counted as; vLLM's own limit of `n` is 16,384.
inline constexpr uint64_t kMaxEngineRequests = 1u << 20;
// The most single requests that one request is split into. Each takes a connection to the engine
// and a place in the engine's batch.
inline constexpr uint64_t kMaxSplit = 64;

struct EngineFacts {
  std::vector<std::string> base_models;  // the names under which the engine serves its base model
  std::string control_authorization;  // Authorization of the door's own calls (abort), may be empty
  bool dies_of_prompt_logprobs = false;
  bool mixes_base = false;          // a request for the base model may be answered with an adapter
  bool cumulative_streams = false;  // SGLang's /generate repeats the whole text in each event
  bool aborts_waiting = false;      // a request may be aborted by its id before its first token
};

struct BodyFacts {
  References adapters;  // one, or one for each prompt of the batch; an empty text names none
  bool adapter_is_list = false;
  std::string asked_model;  // JSON text of `model` where it names something
  std::string base_model;   // the text itself where it is a name of the engine's base model
  bool stream = false;
  bool searches_beams = false;         // vLLM: `use_beam_search`
  bool wants_prompt_logprobs = false;  // read only where the engine dies of it (EngineFacts)
  uint64_t n = 1;
  size_t batch = 0;  // 0: not a batch
  size_t prompts() const { return batch == 0 ? 1 : batch; }
  uint32_t engine_requests = 1;  // how many requests the engine makes of it, as the body says
  std::vector<std::string> client_ids;  // `rid` as the client gave it, if it did

  // Where these stand in the body; what is absent has the kind kNull and the length 0.
  JsonRange object, model, lora_path;
  JsonRange rid;                    // on vLLM `request_id`, which is left as it is
  std::vector<JsonRange> n_values;  // `sampling_params` may be a list, each with its own
  bool object_is_empty = false;
  bool model_names_base = false;  // `model` names the base model, and no adapter
  bool model_has_colon = false;
};

enum class AdapterPlace { kLoraPath, kModel, kNowhere };
enum class CountPlace { kNowhere, kBody, kSamplingParams };

// Which fields SGLang reads on its routes, and where (srt/entrypoints/openai/protocol.py and
// srt/managers/io_struct.py, 0.5.23).
struct ShapeRules {
  AdapterPlace adapter = AdapterPlace::kLoraPath;
  std::array<std::string_view, 7> prompts = {};  // keys whose list is a batch
  CountPlace n = CountPlace::kNowhere;
  bool has_conversations = false;  // a list of objects there is one prompt
  bool has_model = true;
  bool has_ids = true;
};
ShapeRules RulesOf(BodyShape shape);

// False for the routes of SGLang that hand no adapter to the model, whatever the body names
// (/v1/score, /v1/responses): they always answer with the base model.
bool CarriesAdapters(fleet::EngineKind kind, BodyShape shape);

// As pydantic reads a bool in its lax mode, in which both engines read theirs: true, the number one
// and some words (pydantic-core, src/input/shared.rs). What it refuses is false here; the engine
// refuses it. INVALID_ARGUMENT REQUEST_INVALID.
absl::StatusOr<bool> BoolValue(const PaddedBody& body, const JsonRange& at);

// INVALID_ARGUMENT REQUEST_INVALID.
absl::StatusOr<BodyFacts> ReadBody(fleet::EngineKind kind, BodyShape shape,
                                   const EngineFacts& engine, const PaddedBody& body);

}  // namespace lorry::door
