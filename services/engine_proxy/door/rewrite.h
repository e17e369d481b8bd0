// What the door must know of a request's body, and the body that the engine gets instead.
//
// Pure functions, any thread. Only the adapter reference changes, and on SGLang the request's id
// (which must be unique and of one length, because SGLang aborts by prefix) and `n` where it is
// split; every other byte stays.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
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
// Each of them takes a connection to the engine and a slot of its batch.
inline constexpr uint64_t kMaxSplit = 64;

struct EngineFacts {
  std::vector<std::string> base_models;  // the names under which the engine serves its base model
  bool split_n = true;  // SGLang: n > 1 unbalances the adapter's counter (sglang#36894)
  std::string control_authorization;  // Authorization of the door's own calls (abort), may be empty
};

struct BodyFacts {
  std::vector<std::string>
      adapters;  // references, one or one for each of the batch; empty text: none
  bool adapter_is_list = false;
  bool stream = false;
  uint64_t n = 1;
  size_t batch = 0;                     // 0: not a batch
  std::vector<std::string> client_ids;  // `rid` as the client gave it, if it did

  // Where things are in the body; kind kNull with length 0 where absent.
  JsonRange object, model, lora_path, rid, n_value;
  bool object_is_empty = false;
  bool model_names_base = false;  // `model` may stay
};

// INVALID_ARGUMENT REQUEST_INVALID.
absl::StatusOr<BodyFacts> ReadBody(fleet::EngineKind kind, BodyShape shape,
                                   const EngineFacts& engine, const PaddedBody& body);

// `resolved` and `ids` as BodyFacts::adapters and batch ask: one, or one each.
std::string RewriteBody(fleet::EngineKind kind, BodyShape shape, const EngineFacts& engine,
                        const PaddedBody& body, const BodyFacts& facts,
                        const std::vector<Resolved>& resolved, const std::vector<std::string>& ids,
                        bool split_n);

}  // namespace lorry::door
