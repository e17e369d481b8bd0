// The seam of bulk transfer, seen from the side that dials: fetches ranges of an image into memory,
// pushes ranges out of memory. Implementations: ucx/ (first choice), grpc/ (fallback, Python),
// memory/ (in process, tests). The serving side is server.h. One contract suite
// (tests/contract/transfer) runs over all of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "lib/base/clock.h"
#include "lib/transfer/checksum.h"
#include "lib/transfer/ranges.h"

namespace lorry::transfer {

struct TransferOptions {
  // Bytes of one range: 1 to 8 MiB, a multiple of 1 MiB. Below, overhead shows; above, nothing is
  // gained and pacing gets coarse.
  uint64_t range_bytes = uint64_t{4} << 20;
  int in_flight = 8;               // ranges at a time; 1 to 16
  Tick deadline_ms = 60'000;       // for the whole transfer, connecting included
  Tick idle_deadline_ms = 10'000;  // without any progress: a stopped or vanished peer
};

// How a transfer ended. `done` are the ranges that were verified here (fetch) or acknowledged by
// the receiver (push), whatever the status: what a resumed transfer may leave out.
struct Outcome {
  absl::Status status;
  RangeSet done;
  uint64_t bytes = 0;  // moved by this transfer
  uint64_t spared =
      0;  // of these: bytes that did not travel, as they follow from FetchRequest::base
  std::string transport;  // the name of the transport that carried it, "ucx-shm"
};

// Both run on the transport's thread and must not block; post elsewhere. `OnDone` is called exactly
// once, last, and after it the transport neither reads nor writes the memory of the request.
using OnRange = std::function<void(const Range& range, std::span<const Checksum> pieces)>;
using OnDone = std::function<void(Outcome outcome)>;

// An older image, as long as the one that is fetched, that lies here whole and proven: a sender that has
// it too may send what has changed since (delta.h). By gRPC alone.
struct Base {
  std::shared_ptr<const void> owner;  // keeps `bytes` mapped
  std::span<const std::byte> bytes;
  std::string
      ticket;  // to read it from where the image is fetched: it shows what the sender may tell
};

struct FetchRequest {
  std::string address;  // "grpc://host:port"
  std::string ticket;
  std::vector<Range> ranges;         // empty: the whole destination
  std::span<std::byte> destination;  // as long as the image; stays mapped until OnDone
  std::vector<Checksum> leaves;  // the manifest's leaves where known: verified against them, not
                                 // only the sender's word
  std::optional<Base> base;
  TransferOptions options;
};

struct PushRequest {
  std::string address;
  std::string ticket;
  std::vector<Range> ranges;          // empty: the whole source
  std::span<const std::byte> source;  // as long as the image (ranges outside `ranges` are not read)
  std::vector<Checksum> leaves;       // where known: saves hashing
  TransferOptions options;
};

// A transfer that runs. Any thread; letting go of it does not end it.
class Transfer {
 public:
  virtual ~Transfer() = default;
  virtual void Cancel() = 0;  // soon OnDone with CANCELLED, unless it ended already
};

// Counters since start, of one transport or server.
struct TransportStats {
  uint64_t bytes_sent = 0, bytes_received = 0;  // payload, once acknowledged or verified
  uint64_t sessions_opened = 0;
  uint64_t sessions_open = 0;  // now
};

// Codes of Outcome: UNAVAILABLE (connection lost or refused, or this transport does not reach the
// peer: resume with what is missing, here or by another),
// DEADLINE_EXCEEDED (either deadline), CANCELLED, PERMISSION_DENIED BAD_TICKET or TICKET_EXPIRED,
// OUT_OF_RANGE BAD_RANGE, DATA_LOSS RANGE_CORRUPT, ABORTED RANGE_CONFLICT, INVALID_ARGUMENT (the
// request itself), or what the handler answered.
class Transport {
 public:
  virtual ~Transport() = default;  // cancels what runs and returns after the last OnDone
  // "ucx-shm", "grpc": for logs and metrics.
  virtual std::string_view name() const = 0;
  // Of the addresses that it dials. Several transports may dial the same.
  virtual std::string_view scheme() const = 0;
  // Thread-safe; never block, never call back before they return.
  virtual std::shared_ptr<Transfer> Fetch(FetchRequest request, OnRange on_range,
                                          OnDone on_done) = 0;
  virtual std::shared_ptr<Transfer> Push(PushRequest request, OnRange on_range, OnDone on_done) = 0;
  virtual TransportStats stats() const = 0;
};

// Waits until the transfer that `start` begins has ended, as it tells the OnDone that it is given.
// For tests, tools and plain threads, never for a transport's own.
Outcome Await(absl::FunctionRef<void(OnDone)> start);
// Fetch and Push that wait in this way.
Outcome FetchAndWait(Transport& transport, FetchRequest request, OnRange on_range = {});
Outcome PushAndWait(Transport& transport, PushRequest request, OnRange on_range = {});

// "grpc" of "grpc://host:port"; empty when there is no scheme. AddressOf gives "host:port".
std::string_view SchemeOf(std::string_view address);
std::string_view HostPortOf(std::string_view address);

}  // namespace lorry::transfer
