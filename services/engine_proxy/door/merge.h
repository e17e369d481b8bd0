// Puts the replies of n single requests together into the one reply that n > 1 would have had. Pure
// functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace lorry::door {

// SGLang /generate answers n > 1 with a list.
std::string MergeGenerate(const std::vector<std::string>& replies);

// OpenAI: one list of choices, numbered; usage with the tokens of all. Everything else is the first
// reply's, byte for byte. INTERNAL ENGINE_REPLY_INVALID when a reply is not of that form.
absl::StatusOr<std::string> MergeOpenAi(std::vector<std::string> replies);

// Replaces each occurrence of the engine's request id by the client's own in a byte stream that
// comes in pieces.
class IdRestorer {
 public:
  // Ids of the engine's are all of one length; `theirs[i]` stands for `ours[i]`, inside of JSON
  // strings.
  IdRestorer(std::vector<std::string> ours, const std::vector<std::string>& theirs);
  // What can be passed on now. A tail that may be the beginning of an id is kept until more is
  // known, except at the end of the stream.
  std::string Feed(std::string_view piece, bool end);

 private:
  std::vector<std::string> ours_;
  std::vector<std::string> theirs_;
  std::string kept_;
};

}  // namespace lorry::door
