// An active-message header from the network: refused, or within its limits and written back the
// same.
#include <string_view>

#include "lib/base/check.h"
#include "lib/transfer/ucx/wire.h"

using namespace lorry::transfer;  // NOLINT(google-build-using-namespace)

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view header(reinterpret_cast<const char*>(data), size);
  const auto message = ucx::Decode(header);
  if (!message.ok()) return 0;
  LORRY_CHECK(header.size() <= ucx::kHeaderBytesMax);
  if (message->range.length > 0) LORRY_CHECK(CheckRange(message->range, kImageBytesMax).ok());
  LORRY_CHECK(ucx::Encode(*message) == header);
  return 0;
}
