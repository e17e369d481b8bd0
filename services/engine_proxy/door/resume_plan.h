// Which requests may be resumed under another version, how the rest of their tokens is asked for,
// and how it is joined to what came before: to one sequence of tokens that several versions made.
//
// Pure functions, any thread. Token ids are joined exactly, and log-probabilities with them; the
// text is what each version's tokens decode to by themselves, one after the other.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "services/engine_proxy/door/body_facts.h"

namespace lorry::door {

// Where a request's body keeps what differs in a continuation.
struct ResumePlan {
  JsonRange prompt;          // the list of token ids
  JsonRange most;            // the number of tokens that may be generated,
  uint64_t most_tokens = 0;  // and its value
};

// For requests to SGLang's /generate. FAILED_PRECONDITION, with a message for the client, for what
// cannot be resumed: prompts that are no token ids, and all that would mean something else if it
// began anew behind the tokens that are there.
absl::StatusOr<ResumePlan> PlanResume(const BodyFacts& facts, const PaddedBody& body);

// What SGLang answered, read for what a continuation needs.
struct Generated {
  std::string ids;          // as it wrote them, with commas between
  uint64_t tokens = 0;      // that it counts
  bool lists_all = true;    // `ids` has all of them
  bool is_over = false;     // it ends the sequence
  bool is_aborted = false;  // by an abort
};
absl::StatusOr<Generated> ReadGenerated(const PaddedBody& reply);

// The edits of the client's body that ask for the rest.
std::vector<Edit> ContinuationEdits(const ResumePlan& plan, const PaddedBody& body,
                                    const Generated& before);

// The `reply` to a continuation, changed so that it also has what was generated before it.
absl::StatusOr<std::string> Continued(const PaddedBody& before, std::string reply);

}  // namespace lorry::door
