// Moves an image by the best transport that works: shared memory before networks before gRPC, going
// on with what is missing.
//
// A place is a transport at an address. After UNAVAILABLE the transfer resumes at the same place
// while attempts bring bytes, at the next place otherwise. A place where nothing moves, as where
// packets are swallowed, or which has no room, is left for the next one too, if there is one. A
// fetch leaves a peer for whatever reason where another follows, who may have the right bytes. All
// of it within a bounded number of attempts and the request's one deadline. Other codes end it.
// Thread-safe; owns its transports.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lib/transfer/transport.h"

namespace lorry::transfer {

// Where an image can be had, and by which ticket.
struct Source {
  std::string address;
  std::string ticket;
};

// Whoever was asked has as much to do as it takes: it has nothing against the request, and may be
// asked again, or another one.
bool IsFull(const absl::Status& status);

class TransportSet {
 public:
  // In the order of preference.
  explicit TransportSet(std::vector<std::unique_ptr<Transport>> transports);
  ~TransportSet();  // cancels what runs and returns after the last OnDone

  // `sources`: where the same bytes can be had; `addresses`: where they must go. Those of a
  // transport are tried in their order. `request.address`, and a fetch's ticket, are ignored.
  // FAILED_PRECONDITION NO_TRANSPORT when none of them has a known scheme. `on_range` sees every
  // range once.
  std::shared_ptr<Transfer> Fetch(const std::vector<Source>& sources, FetchRequest request,
                                  OnRange on_range, OnDone on_done);
  std::shared_ptr<Transfer> Push(std::vector<std::string> addresses, PushRequest request,
                                 OnRange on_range, OnDone on_done);

  // nullptr for an unknown name.
  Transport* Find(std::string_view name) const;
  const std::vector<std::unique_ptr<Transport>>& transports() const { return transports_; }

 private:
  template <typename Request>
  std::shared_ptr<Transfer> Begin(const std::vector<Source>& peers, Request request,
                                  OnRange on_range, OnDone on_done);

  std::vector<std::unique_ptr<Transport>> transports_;
};

// Eight attempts: a peer that loses its connection more often in one transfer is not worth a ninth.
inline constexpr int kAttemptsMax = 8;

// How long nothing may move at a place that is not the last one. Shared memory and healthy networks
// move something every few milliseconds; a store whose disk is busy may miss this, and then goes on
// by gRPC, which has the request's own idle deadline.
inline constexpr Tick kTrialIdleMs = 2'000;

}  // namespace lorry::transfer
