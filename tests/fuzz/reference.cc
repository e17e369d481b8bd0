// Any text as a reference: refused with a reason, or within its limits.
#include "lib/peft/reference.h"

#include "lib/base/check.h"
#include "lib/base/error.h"

using namespace lorry;        // NOLINT(google-build-using-namespace)
using namespace lorry::peft;  // NOLINT(google-build-using-namespace)

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto reference =
      ParseReference(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!reference.ok()) {
    LORRY_CHECK(ReasonOf(reference.status()) == "IMAGE_MALFORMED");
    return 0;
  }
  LORRY_CHECK(!reference->empty() && reference->size() <= kReferencePromptsMax);
  for (const ReferencePrompt& prompt : *reference) {
    LORRY_CHECK(prompt.tokens.size() >= 2 && prompt.tokens.size() <= kReferenceTokensMax);
    LORRY_CHECK(prompt.logprobs.size() == prompt.tokens.size() - 1);
    LORRY_CHECK(prompt.base.empty() || prompt.base.size() == prompt.logprobs.size());
    for (const double logprob : prompt.logprobs) LORRY_CHECK(logprob <= 0 && logprob > -1e4);
  }
  (void)LargestToken(*reference);
  return 0;
}
