// The active-message headers of the UCX transport: what lorry.transfer.v1 says, in a few fixed
// bytes.
//
// Pure functions. `Decode` reads hostile input: every length is bounded before it is used. Payloads
// travel beside the header and are checked against its range by the caller.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/transfer/checksum.h"
#include "lib/transfer/ticket.h"

namespace lorry::transfer::ucx {

enum class Kind : uint8_t {
  kOpen = 1,    // client: ticket, direction; the first message on an endpoint
  kOpened = 2,  // server: image_bytes
  kGet = 3,     // client: request, range
  kData = 4,    // server: request, range, pieces; payload: the range's bytes
  kPut = 5,     // client: request, range, pieces; payload: the range's bytes
  // Server: request, status: a range taken or refused; request 0: the whole session ended.
  kDone = 6,
};

struct Message {
  Kind kind = Kind::kOpen;
  uint64_t session = 0;  // chosen by the client, repeated by the server
  uint32_t request = 0;  // chosen by the client, from 1
  Range range;
  Direction direction = Direction::kGet;
  uint64_t image_bytes = 0;
  std::string ticket;
  std::vector<Checksum> pieces;
  absl::Status status;  // code, reason and message; at most kStatusTextMax bytes each
};

inline constexpr size_t kStatusTextMax = 512;
// The longest header: kOpen with the longest ticket. UCX grants some 8,100 bytes.
inline constexpr size_t kHeaderBytesMax = kTicketBytesMax + 64;

std::string Encode(const Message& message);

// INVALID_ARGUMENT for anything that Encode would not have written.
absl::StatusOr<Message> Decode(std::string_view header);

}  // namespace lorry::transfer::ucx
