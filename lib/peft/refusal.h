// How lib/peft says no: INVALID_ARGUMENT with a reason of docs/ERRORS.md and a sentence that ends
// in a remedy. Internal to lib/peft.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace lorry::peft {

absl::Status Refuse(std::string_view reason, std::string_view message);

// Text from an untrusted file as it may appear in a message: quoted, escaped, cut to 160 bytes.
std::string Quoted(std::string_view untrusted);

// The one remedy for whatever is more than a low-rank update.
inline constexpr std::string_view kSyncMerged = "sync merged weights instead";

}  // namespace lorry::peft
