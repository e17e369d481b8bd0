// Any text as a selector: refused with a reason and a bounded message, or read back unchanged from
// its shortest spelling, which names nothing that a path or a header could break on.
#include "lib/fleet/selector.h"

#include "lib/base/check.h"
#include "lib/base/error.h"

using namespace lorry;         // NOLINT(google-build-using-namespace)
using namespace lorry::fleet;  // NOLINT(google-build-using-namespace)

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto read = ParseSelector(text);
  if (!read.ok()) {
    LORRY_CHECK(ReasonOf(read.status()) == "NAME_INVALID");
    LORRY_CHECK(!read.status().message().empty() && read.status().message().size() < 512);
  } else {
    const std::string written = ToString(*read);
    LORRY_CHECK(written.find_first_of("/ \"\\\r\n") == std::string::npos && written.size() < 160);
    const auto again = ParseSelector(written);
    LORRY_CHECK(again.ok() && *again == *read);
  }
  const auto version = ParseVersion(text);
  const bool is_alias = version.ok() && version->kind == Selector::Kind::kAlias;
  LORRY_CHECK(CheckAliasName(text).ok() == is_alias);
  return 0;
}
