#include "lib/base/ids.h"

#include <algorithm>
#include <cctype>

#include "absl/strings/str_cat.h"
#include "lib/base/error.h"
#include "lib/base/strings.h"

namespace lorry {
namespace {

// 62 after the first keeps `{adapter}-v{number}-{12 hex}` below 128 bytes, the shortest limit any
// engine was seen to have.
constexpr size_t kNameBytesMax = 63;

bool IsNameByte(char c) {
  return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
}

bool EndsLikeAVersion(std::string_view name) {
  const size_t digits = name.find_last_not_of("0123456789");
  return digits != std::string_view::npos && digits + 1 < name.size() && digits >= 1 &&
         name[digits] == 'v' && name[digits - 1] == '-';
}

}  // namespace

std::string ToString(const VersionKey& key) {
  return absl::StrCat(key.adapter.value, " r", key.run.value, ".", key.number.value);
}

std::string ToString(const Term& term) { return absl::StrCat(term.incarnation, ".", term.term); }

absl::Status CheckName(std::string_view what, std::string_view name) {
  const bool starts_well =
      !name.empty() && IsNameByte(name[0]) && std::isalnum(static_cast<unsigned char>(name[0]));
  if (starts_well && name.size() <= kNameBytesMax &&
      std::all_of(name.begin(), name.end(), IsNameByte)) {
    return absl::OkStatus();
  }
  return Error(
      absl::StatusCode::kInvalidArgument, "NAME_INVALID",
      absl::StrCat(ToAbsl(what),
                   " must match ^[a-z0-9][a-z0-9._-]{0,62}$, for instance \"math-policy\""));
}

absl::Status CheckAdapterName(std::string_view name) {
  LORRY_RETURN_IF_ERROR(CheckName("the adapter's name", name));
  if (EndsLikeAVersion(name)) {
    return Error(absl::StatusCode::kInvalidArgument, "NAME_INVALID",
                 absl::StrCat("the adapter's name \"", ToAbsl(name),
                              "\" ends like a version; leave out the -v<digits>, Lorry adds it"));
  }
  return absl::OkStatus();
}

}  // namespace lorry
