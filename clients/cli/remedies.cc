#include "clients/cli/remedies.h"

#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "lib/base/strings.h"

namespace lorry::cli {
namespace {

constexpr char kErrorsPage[] =
#include "errors_page.inc"
    ;

}  // namespace

std::string RemedyIn(std::string_view page, std::string_view reason) {
  // | `REASON` | code | from | means | do |
  constexpr size_t kColumns = 7, kDo = 5;
  const std::string begin = absl::StrCat("| `", ToAbsl(reason), "` |");
  for (const absl::string_view line : absl::StrSplit(ToAbsl(page), '\n')) {
    if (!absl::StartsWith(line, begin)) continue;
    const std::vector<absl::string_view> columns = absl::StrSplit(line, '|');
    if (columns.size() == kColumns) {
      return std::string(absl::StripAsciiWhitespace(columns[kDo]));
    }
  }
  return "";
}

std::string Remedy(std::string_view reason) { return RemedyIn(kErrorsPage, reason); }

}  // namespace lorry::cli
