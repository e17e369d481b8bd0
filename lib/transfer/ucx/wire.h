// The headers of the active messages of a UCX session: a few bytes that say which range a message
// is about. Tickets, refusals and the session's end travel on a gRPC stream that is open at the
// same time.
//
// Pure functions. `Decode` reads hostile input: every length is bounded before it is used. Payloads
// travel beside the header and are checked against its range by the caller.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/transfer/checksum.h"
#include "lib/transfer/ranges.h"
#include "lib/transfer/session.h"

namespace lorry::transfer::ucx {

enum class Kind : uint8_t {
  kGet = 1,   // client: request, range
  kData = 2,  // server: request, range, pieces; payload: the range's bytes
  kPut = 3,   // client: request, range, pieces; payload: the range's bytes
  kDone = 4,  // server: request; its bytes are verified and in place
};

struct Message {
  Kind kind = Kind::kGet;
  uint32_t request = 0;  // chosen by the client, from 1
  Range range;
  std::vector<Checksum> pieces;
};

// The longest header: a range of eight leaves that begins within one.
inline constexpr size_t kHeaderBytesMax = 32 + kPiecesMax * sizeof(Checksum::bytes);

std::string Encode(const Message& message);

// INVALID_ARGUMENT for anything that Encode would not have written.
absl::StatusOr<Message> Decode(std::string_view header);

}  // namespace lorry::transfer::ucx
