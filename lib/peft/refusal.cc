#include "lib/peft/refusal.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "lib/base/error.h"
#include "lib/base/strings.h"

namespace lorry::peft {
namespace {
// Long enough for any real tensor name (about 80 bytes), short enough for a status of a few lines.
constexpr size_t kQuotedBytesMax = 160;
}  // namespace

absl::Status Refuse(std::string_view reason, std::string_view message) {
  return Error(absl::StatusCode::kInvalidArgument, reason, message);
}

std::string Quoted(std::string_view untrusted) {
  const bool cut = untrusted.size() > kQuotedBytesMax;
  return absl::StrCat("\"", absl::CHexEscape(ToAbsl(untrusted.substr(0, kQuotedBytesMax))),
                      cut ? "...\"" : "\"");
}

}  // namespace lorry::peft
