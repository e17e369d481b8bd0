// What may be resumed, and how a continuation is asked for and put behind what came before: one
// sequence of tokens that several versions made.
//
// Pure functions, any thread. Token ids, and log-probabilities with them, are exact; text is what
// each version's share of the tokens decodes to.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "services/engine_proxy/door/body_facts.h"

namespace lorry::door {

// Where a request's body keeps what differs in a continuation.
struct ResumePlan {
  JsonRange prompt;  // the list of token ids
  JsonRange most;    // how many tokens may be generated
  uint64_t most_tokens = 0;
};

// FAILED_PRECONDITION with the reason in the client's words: only token ids in and out, and only
// what means the same when it begins anew behind the tokens that are there. SGLang /generate.
absl::StatusOr<ResumePlan> PlanResume(const BodyFacts& facts, const PaddedBody& body);

// What SGLang answered, read for what a continuation needs.
struct Generated {
  std::string ids;  // as it wrote them, with commas between
  uint64_t tokens = 0;
  bool is_over = false;     // it ends the sequence
  bool is_aborted = false;  // by an abort
};
absl::StatusOr<Generated> ReadGenerated(const PaddedBody& reply);

// The edits of the client's body that ask for the rest.
std::vector<Edit> ContinuationEdits(const ResumePlan& plan, const PaddedBody& body,
                                    const Generated& before);

// `reply` of a continuation as if it had generated what `before` says, too.
absl::StatusOr<std::string> Continued(const PaddedBody& before, std::string reply);

}  // namespace lorry::door
