// Tickets: the right to move certain bytes, minted by the store over an authenticated channel and
// shown to a transport with the first message. HMAC-SHA256 over every field, with the id of the key
// that made it.
//
// Where callers prove who they are, a ticket is of use to the one it was made for alone; elsewhere to
// whoever has it, until it expires. It is never logged; its id is.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/base/mutex.h"
#include "lib/transfer/ranges.h"

namespace lorry::transfer {

// The id of a relay's only key, which it makes itself and tells the store that sends it readers.
inline constexpr uint32_t kRelayKeyId = 1;

enum class Direction : uint8_t { kGet = 1, kPut = 2 };

struct TicketClaims {
  std::string ticket_id;  // chosen by the minter, for logs and holder sets
  Direction direction = Direction::kGet;
  std::string object;         // GET: the image's blob key; PUT: the upload id
  uint64_t image_bytes = 0;   // the whole image's length
  std::vector<Range> ranges;  // what may be moved; empty: the whole image
  std::string peer;           // the caller who asked for it, and who alone may show it
  int64_t expires_unix_ms = 0;
  bool operator==(const TicketClaims&) const = default;
};

// Limits of what is minted and of what is read before the HMAC is checked. With all of them at
// their greatest a ticket has some 3 KiB: it must fit one UCX active-message header (8 KiB).
inline constexpr size_t kTicketTextBytesMax = 256;  // each of ticket_id, object, peer
inline constexpr size_t kTicketRangesMax = 128;
inline constexpr size_t kTicketBytesMax = 4096;

// The keys of one store and of the relays that verify for it. Thread-safe.
class TicketKeys {
 public:
  using Secret = std::array<uint8_t, 32>;

  // One fresh random key, made the minting key.
  static std::unique_ptr<TicketKeys> Generate();
  // Adds or replaces; the last one added mints. Id 0 is refused by CHECK: it means "no key".
  void Add(uint32_t key_id, const Secret& secret) LORRY_EXCLUDES(mutex_);
  void Remove(uint32_t key_id) LORRY_EXCLUDES(mutex_);

  // INVALID_ARGUMENT when a field exceeds its limit; FAILED_PRECONDITION without a key.
  absl::StatusOr<std::string> Mint(const TicketClaims& claims) const LORRY_EXCLUDES(mutex_);

  // `token` is hostile. PERMISSION_DENIED BAD_TICKET: malformed, unknown key, wrong HMAC (compared
  // in constant time). PERMISSION_DENIED TICKET_EXPIRED: ours, but too old; ask the store for
  // another.
  absl::StatusOr<TicketClaims> Verify(std::string_view token, int64_t now_unix_ms) const
      LORRY_EXCLUDES(mutex_);

 private:
  mutable Mutex mutex_;
  std::map<uint32_t, Secret> secrets_ LORRY_GUARDED_BY(mutex_);
  uint32_t minting_ LORRY_GUARDED_BY(mutex_) = 0;
};

// OK when `claims` allow moving `range` of the image: within the image (else OUT_OF_RANGE
// BAD_RANGE) and within its ranges (else PERMISSION_DENIED BAD_TICKET).
absl::Status CheckAllowed(const TicketClaims& claims, const Range& range);

// Milliseconds since 1970, the clock that expiry is measured on.
int64_t NowUnixMs();

}  // namespace lorry::transfer
