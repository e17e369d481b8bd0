// A ticket: the first byte chooses, the rest is the token as it came, or a token whose HMAC is made
// right so that what is inside is reached.
#include "lib/transfer/ticket.h"

#include <openssl/hmac.h>

#include <string>

#include "lib/base/check.h"
#include "lib/base/error.h"

using namespace lorry;            // NOLINT(google-build-using-namespace)
using namespace lorry::transfer;  // NOLINT(google-build-using-namespace)

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  static TicketKeys* keys = [] {
    auto* made = new TicketKeys;
    made->Add(1, {});
    return made;
  }();
  std::string token(reinterpret_cast<const char*>(data + 1), size - 1);
  if (data[0] & 1) {
    const TicketKeys::Secret secret{};
    unsigned char mac[32];
    unsigned int length = 0;
    HMAC(EVP_sha256(), secret.data(), secret.size(),
         reinterpret_cast<const unsigned char*>(token.data()), token.size(), mac, &length);
    token.append(reinterpret_cast<char*>(mac), length);
  }
  const auto claims = keys->Verify(token, 0);
  if (!claims.ok()) {
    LORRY_CHECK(!ReasonOf(claims.status()).empty());
    return 0;
  }
  // What is accepted is within the limits, and is the only way to write it.
  const auto again = keys->Mint(*claims);
  LORRY_CHECK(again.ok() && *again == token);
  for (const Range& range : claims->ranges) LORRY_CHECK(CheckAllowed(*claims, range).ok());
  return 0;
}
