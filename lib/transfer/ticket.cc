#include "lib/transfer/ticket.h"

#include <openssl/crypto.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <chrono>
#include <span>

#include "absl/strings/str_cat.h"
#include "lib/base/check.h"
#include "lib/base/error.h"
#include "lib/base/strings.h"
#include "lib/transfer/byte_codec.h"

namespace lorry::transfer {
namespace {

// Layout: format byte, key id, fields, HMAC over all before it.
constexpr uint8_t kFormat = 2;
constexpr size_t kMacBytes = 32;

absl::Status Refused(std::string_view why) {
  return Error(absl::StatusCode::kPermissionDenied, "BAD_TICKET",
               absl::StrCat("the ticket ", ToAbsl(why)));
}

std::array<uint8_t, kMacBytes> MacOf(const TicketKeys::Secret& secret, std::string_view text) {
  std::array<uint8_t, kMacBytes> mac{};
  unsigned int length = 0;
  LORRY_CHECK(HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
                   reinterpret_cast<const unsigned char*>(text.data()), text.size(), mac.data(),
                   &length) != nullptr);
  LORRY_CHECK(length == kMacBytes);
  return mac;
}

std::string Encode(uint32_t key_id, const TicketClaims& claims) {
  ByteWriter out;
  out.Number(kFormat, 1);
  out.Number(key_id, 4);
  out.Text(claims.ticket_id, kTicketTextBytesMax);
  out.Number(static_cast<uint8_t>(claims.direction), 1);
  out.Text(claims.object, kTicketTextBytesMax);
  out.Number(claims.image_bytes, 8);
  out.Number(claims.ranges.size(), 2);
  for (const Range& range : claims.ranges) {
    out.Number(range.offset, 8);
    out.Number(range.length, 8);
  }
  out.Text(claims.peer, kTicketTextBytesMax);
  out.Number(static_cast<uint64_t>(claims.expires_unix_ms), 8);
  return out.Take();
}

// The limits hold for what was minted, so they are checked on what is read as well.
absl::Status CheckLimits(const TicketClaims& claims) {
  const auto invalid = [](std::string_view what) {
    return Error(absl::StatusCode::kInvalidArgument, "",
                 absl::StrCat("a ticket's ", ToAbsl(what), " is outside of its limits"));
  };
  for (const std::string* text : {&claims.ticket_id, &claims.object, &claims.peer}) {
    if (text->size() > kTicketTextBytesMax) return invalid("text");
  }
  if (claims.ticket_id.empty() || claims.object.empty()) return invalid("id or object");
  if (claims.direction != Direction::kGet && claims.direction != Direction::kPut) {
    return invalid("direction");
  }
  if (claims.image_bytes > kImageBytesMax) return invalid("image length");
  if (claims.ranges.size() > kTicketRangesMax) return invalid("number of ranges");
  for (const Range& range : claims.ranges) {
    if (!CheckRange(range, claims.image_bytes).ok()) return invalid("range");
  }
  return absl::OkStatus();
}

TicketClaims Decode(ByteReader& in) {
  TicketClaims claims;
  claims.ticket_id = in.Text(kTicketTextBytesMax);
  claims.direction = static_cast<Direction>(in.Number(1));
  claims.object = in.Text(kTicketTextBytesMax);
  claims.image_bytes = in.Number(8);
  const uint64_t count = in.Number(2);
  for (uint64_t i = 0; i < count && in.ok(); ++i) {
    const uint64_t offset = in.Number(8);
    claims.ranges.push_back({offset, in.Number(8)});
  }
  claims.peer = in.Text(kTicketTextBytesMax);
  claims.expires_unix_ms = static_cast<int64_t>(in.Number(8));
  return claims;
}

}  // namespace

std::unique_ptr<TicketKeys> TicketKeys::Generate() {
  auto keys = std::make_unique<TicketKeys>();
  Secret secret;
  LORRY_CHECK(RAND_bytes(secret.data(), static_cast<int>(secret.size())) == 1);
  keys->Add(1, secret);
  return keys;
}

void TicketKeys::Add(uint32_t key_id, const Secret& secret) {
  LORRY_CHECK(key_id != 0);
  MutexLock lock(mutex_);
  secrets_[key_id] = secret;
  minting_ = key_id;
}

void TicketKeys::Remove(uint32_t key_id) {
  MutexLock lock(mutex_);
  secrets_.erase(key_id);
  if (minting_ == key_id) minting_ = secrets_.empty() ? 0 : secrets_.rbegin()->first;
}

absl::StatusOr<std::string> TicketKeys::Mint(const TicketClaims& claims) const {
  LORRY_RETURN_IF_ERROR(CheckLimits(claims));
  MutexLock lock(mutex_);
  if (minting_ == 0) {
    return Error(absl::StatusCode::kFailedPrecondition, "", "there is no key to mint tickets with");
  }
  std::string token = Encode(minting_, claims);
  const auto mac = MacOf(secrets_.at(minting_), token);
  token.append(reinterpret_cast<const char*>(mac.data()), mac.size());
  LORRY_CHECK(token.size() <= kTicketBytesMax);
  return token;
}

absl::StatusOr<TicketClaims> TicketKeys::Verify(std::string_view token, int64_t now_unix_ms) const {
  if (token.size() > kTicketBytesMax || token.size() < kMacBytes + 5) {
    return Refused("has an impossible length");
  }
  const std::string_view text = token.substr(0, token.size() - kMacBytes);
  const std::string_view mac = token.substr(text.size());
  ByteReader in(text);
  if (in.Number(1) != kFormat) return Refused("has an unknown format");
  const auto key_id = static_cast<uint32_t>(in.Number(4));
  Secret secret;
  {
    MutexLock lock(mutex_);
    const auto found = secrets_.find(key_id);
    if (found == secrets_.end()) return Refused("was made with a key that is not known here");
    secret = found->second;
  }
  const auto expected = MacOf(secret, text);
  if (CRYPTO_memcmp(expected.data(), mac.data(), kMacBytes) != 0) {
    return Refused("was not made here, or was altered");
  }
  TicketClaims claims = Decode(in);
  if (!in.whole() || !CheckLimits(claims).ok()) return Refused("is malformed");
  if (now_unix_ms >= claims.expires_unix_ms) {
    return Error(absl::StatusCode::kPermissionDenied, "TICKET_EXPIRED",
                 absl::StrCat("ticket ", claims.ticket_id, " for ", claims.object,
                              " has expired; ask the adapter-store for another"));
  }
  return claims;
}

absl::Status CheckAllowed(const TicketClaims& claims, const Range& range) {
  LORRY_RETURN_IF_ERROR(CheckRange(range, claims.image_bytes));
  if (claims.ranges.empty() || RangeSet(claims.ranges).Contains(range)) return absl::OkStatus();
  return Refused(absl::StrCat("does not allow range ", ToString(range)));
}

int64_t NowUnixMs() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace lorry::transfer
