// What the transports' two sides have in common: checks at the door, the plan of a transfer,
// counters. Internal to lib/transfer.
#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/clock.h"
#include "lib/transfer/ticket.h"
#include "lib/transfer/transport.h"

namespace lorry::transfer {

// The greatest range and number of ranges in flight that a server takes from one connection.
inline constexpr uint64_t kRangeBytesMax = uint64_t{8} << 20;
inline constexpr int kInFlightMax = 16;
// What a peer may answer as a range, request or message: 8 MiB off the grid touches nine leaves.
inline constexpr size_t kPiecesMax = kRangeBytesMax / kLeafBytes + 1;

// Atomic TransportStats.
struct Counters {
  std::atomic<uint64_t> bytes_sent{0}, bytes_received{0}, sessions_opened{0}, sessions_open{0};
  TransportStats Snapshot() const;
};

// The claims of a ticket that is valid now, for `direction`, and was given to `caller`: the name
// behind the call's credentials, empty where everybody may call.
absl::StatusOr<TicketClaims> Admit(const TicketKeys& keys, std::string_view token,
                                   Direction direction, std::string_view caller);

// RESOURCE_EXHAUSTED TOO_MANY_SESSIONS, CANCELLED, and so on: the same words in every transport.
absl::Status TooManySessions(int sessions_max);
absl::Status Cancelled();
absl::Status IdleFor(Tick idle_ms);
absl::Status PastDeadline(Tick deadline_ms);
absl::Status ConnectionLost(std::string_view how);
absl::Status ProtocolViolation(std::string_view what);
// UNAVAILABLE: the transport serves what is there whole, and this image is still coming.
absl::Status StillComing();

// INVALID_ARGUMENT for options or ranges that make no sense for an image of `image_bytes`.
absl::Status CheckRequest(const TransferOptions& options, const std::vector<Range>& ranges,
                          const std::vector<Checksum>& leaves, uint64_t image_bytes);

// What one transfer has to move, what it has moved, and when it is too late. One thread.
class Plan {
 public:
  Plan(const TransferOptions& options, std::vector<Range> ranges, uint64_t image_bytes, Tick now);

  // The next range to ask for or send; false when none is left or enough are in flight.
  bool Next(Range& range);
  void OnProgress(Tick now) { progressed_at_ = now; }
  void OnArrived(const Range& range, Tick now);
  bool complete() const { return next_ == cut_.size() && in_flight_ == 0; }
  // DEADLINE_EXCEEDED once either deadline has passed.
  absl::Status CheckDeadlines(Tick now) const;

  const RangeSet& done() const { return done_; }
  uint64_t bytes() const { return bytes_; }

 private:
  const TransferOptions options_;
  const Tick started_at_;
  const std::vector<Range> cut_;
  size_t next_ = 0;
  int in_flight_ = 0;
  Tick progressed_at_;
  RangeSet done_;
  uint64_t bytes_ = 0;
};

}  // namespace lorry::transfer
