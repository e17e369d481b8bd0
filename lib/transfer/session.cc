#include "lib/transfer/session.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/error.h"
#include "lib/base/strings.h"

namespace lorry::transfer {
namespace {

std::vector<Range> WholeIfEmpty(std::vector<Range> ranges, uint64_t image_bytes) {
  if (ranges.empty() && image_bytes > 0) ranges.push_back({0, image_bytes});
  return ranges;
}

}  // namespace

TransportStats Counters::Snapshot() const {
  return {.bytes_sent = bytes_sent,
          .bytes_received = bytes_received,
          .sessions_opened = sessions_opened,
          .sessions_open = sessions_open};
}

absl::StatusOr<TicketClaims> Admit(const TicketKeys& keys, std::string_view token,
                                   Direction direction, std::string_view caller) {
  auto claims = keys.Verify(token, NowUnixMs());
  if (claims.ok() && claims->direction != direction) {
    claims = Error(absl::StatusCode::kPermissionDenied, "BAD_TICKET",
                   absl::StrCat("ticket ", claims->ticket_id, " is for the other direction"));
  }
  if (claims.ok() && !caller.empty() && claims->peer != caller) {
    claims = Error(absl::StatusCode::kPermissionDenied, "BAD_TICKET",
                   absl::StrCat("ticket ", claims->ticket_id, " was given to another caller"));
  }
  return claims;
}

absl::Status TooManySessions(int sessions_max) {
  return Error(absl::StatusCode::kResourceExhausted, "TOO_MANY_SESSIONS",
               absl::StrCat("this server has its ", sessions_max, " connections; try again soon"));
}

absl::Status Cancelled() { return absl::CancelledError("the transfer was cancelled"); }

absl::Status IdleFor(Tick idle_ms) {
  return absl::DeadlineExceededError(
      absl::StrCat("nothing moved for ", idle_ms, " ms; the peer has stopped or is unreachable"));
}

absl::Status PastDeadline(Tick deadline_ms) {
  return absl::DeadlineExceededError(
      absl::StrCat("the transfer did not end within its ", deadline_ms, " ms"));
}

absl::Status ConnectionLost(std::string_view how) {
  return absl::UnavailableError(
      absl::StrCat("the connection is lost (", ToAbsl(how), "); resume with what is missing"));
}

absl::Status ProtocolViolation(std::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("the peer broke the protocol: ", ToAbsl(what)));
}

absl::Status StillComing() {
  return absl::UnavailableError("the image is still coming, and by gRPC alone to be had meanwhile");
}

absl::Status CheckRequest(const TransferOptions& options, const std::vector<Range>& ranges,
                          const std::vector<Checksum>& leaves, uint64_t image_bytes) {
  if (options.range_bytes == 0 || options.range_bytes > kRangeBytesMax ||
      options.range_bytes % kLeafBytes != 0) {
    return absl::InvalidArgumentError("range_bytes is to be a multiple of 1 MiB, at most 8 MiB");
  }
  if (options.in_flight < 1 || options.in_flight > kInFlightMax) {
    return absl::InvalidArgumentError(absl::StrCat("in_flight is to be 1 to ", kInFlightMax));
  }
  if (options.deadline_ms <= 0 || options.idle_deadline_ms <= 0) {
    return absl::InvalidArgumentError("deadlines are to be positive");
  }
  if (!leaves.empty() && leaves.size() != LeafCount(image_bytes)) {
    return absl::InvalidArgumentError(
        absl::StrCat(leaves.size(), " leaves for an image of ", image_bytes, " bytes"));
  }
  for (const Range& range : ranges) LORRY_RETURN_IF_ERROR(CheckRange(range, image_bytes));
  return absl::OkStatus();
}

Plan::Plan(const TransferOptions& options, std::vector<Range> ranges, uint64_t image_bytes,
           Tick now)
    : options_(options),
      started_at_(now),
      cut_(CutRanges(RangeSet(WholeIfEmpty(std::move(ranges), image_bytes)).Ranges(),
                     options.range_bytes)),
      progressed_at_(now) {}

bool Plan::Next(Range& range) {
  if (next_ == cut_.size() || in_flight_ == options_.in_flight) return false;
  range = cut_[next_++];
  ++in_flight_;
  return true;
}

void Plan::OnArrived(const Range& range, Tick now) {
  --in_flight_;
  progressed_at_ = now;
  bytes_ += range.length;
  // Arrivals are disjoint cuts; past kPiecesMax scattered ones the record is short, and a resumed
  // transfer moves some bytes again.
  done_.Add(range).IgnoreError();
}

absl::Status Plan::CheckDeadlines(Tick now) const {
  if (now - started_at_ >= options_.deadline_ms) return PastDeadline(options_.deadline_ms);
  if (now - progressed_at_ >= options_.idle_deadline_ms) return IdleFor(options_.idle_deadline_ms);
  return absl::OkStatus();
}

}  // namespace lorry::transfer
