// Moves an image by the best transport that works: ucx before grpc before others, going on with
// what is missing.
//
// After UNAVAILABLE the transfer resumes at the same address while attempts bring bytes, at the
// next address otherwise, up to a bounded number of attempts and within the request's one deadline.
// Other codes end it. Thread-safe; owns its transports.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lib/transfer/transport.h"

namespace lorry::transfer {

class TransportSet {
 public:
  // In the order of preference.
  explicit TransportSet(std::vector<std::unique_ptr<Transport>> transports);
  ~TransportSet();  // cancels what runs and returns after the last OnDone

  // `addresses`: where the same bytes can be had, or must go; `request.address` is ignored.
  // FAILED_PRECONDITION NO_TRANSPORT when none of them has a known scheme. `on_range` sees every
  // range once.
  std::shared_ptr<Transfer> Fetch(std::vector<std::string> addresses, FetchRequest request,
                                  OnRange on_range, OnDone on_done);
  std::shared_ptr<Transfer> Push(std::vector<std::string> addresses, PushRequest request,
                                 OnRange on_range, OnDone on_done);

  // nullptr for an unknown scheme.
  Transport* Find(std::string_view scheme) const;
  const std::vector<std::unique_ptr<Transport>>& transports() const { return transports_; }

 private:
  template <typename Request>
  std::shared_ptr<Transfer> Begin(std::vector<std::string> addresses, Request request,
                                  OnRange on_range, OnDone on_done);

  std::vector<std::unique_ptr<Transport>> transports_;
};

// Eight attempts: a peer that loses its connection more often in one transfer is not worth a ninth.
inline constexpr int kAttemptsMax = 8;

}  // namespace lorry::transfer
