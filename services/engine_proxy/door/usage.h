// The token counts in OpenAI replies: added up over the replies to n requests with one prompt.
//
// Pure functions.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "services/engine_proxy/door/json_splice.h"

namespace lorry::door {

struct Usage {
  uint64_t prompt_tokens = 0;  // of the prompt that they have in common
  uint64_t completion_tokens = 0;
  uint64_t reasoning_tokens = 0;
  std::map<std::string, uint64_t> completion_details;  // what completion_tokens_details counts

  // Adds what the object at `at` counts.
  absl::Status Add(const PaddedBody& body, const JsonRange& at);
  // Makes the object at `at` show these.
  absl::Status Write(const PaddedBody& body, const JsonRange& at, std::vector<Edit>* edits) const;
};

}  // namespace lorry::door
