#include "lib/transfer/transport_set.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/error.h"
#include "lib/base/mutex.h"
#include "lib/transfer/relay_address.h"
#include "lib/transfer/session.h"

namespace lorry::transfer {
namespace {

uint64_t ImageBytes(const FetchRequest& request) { return request.destination.size(); }
uint64_t ImageBytes(const PushRequest& request) { return request.source.size(); }

std::shared_ptr<Transfer> StartOn(Transport& transport, FetchRequest request, OnRange on_range,
                                  OnDone done) {
  return transport.Fetch(std::move(request), std::move(on_range), std::move(done));
}
std::shared_ptr<Transfer> StartOn(Transport& transport, PushRequest request, OnRange on_range,
                                  OnDone done) {
  return transport.Push(std::move(request), std::move(on_range), std::move(done));
}

// Only this place, a transport at an address, has failed: nothing moves there, or it takes no more
// sessions. The next place may do better.
bool FailedThereAlone(const absl::Status& status) {
  return absl::IsDeadlineExceeded(status) || IsFull(status);
}

// Only this peer has failed. Fetched bytes are verified here, so that a peer which has lost the
// image or has wrong bytes says nothing of the other peers. A push goes to one store, and all
// places are addresses of it: its answer would be the same at each.
bool FailedWithPeerAlone(const FetchRequest&, const absl::Status& status) {
  return !status.ok() && !absl::IsCancelled(status) && !absl::IsInvalidArgument(status);
}
bool FailedWithPeerAlone(const PushRequest&, const absl::Status&) { return false; }

// Whether there was one.
bool DropBase(FetchRequest& request) {
  const bool had = request.base.has_value();
  request.base.reset();
  return had;
}
bool DropBase(PushRequest&) { return false; }

// One transfer over several attempts. Each attempt's OnDone starts the next from the transport's
// thread.
template <typename Request>
class Attempts final : public Transfer, public std::enable_shared_from_this<Attempts<Request>> {
 public:
  struct Place {
    Source peer;
    Transport* transport;
  };
  Attempts(std::vector<Place> places, Request request, OnRange on_range, OnDone on_done)
      : places_(std::move(places)),
        request_(std::move(request)),
        on_range_(std::move(on_range)),
        on_done_(std::move(on_done)),
        ends_at_(clock_.Now() + request_.options.deadline_ms) {
    if (request_.ranges.empty() && ImageBytes(request_) > 0)
      request_.ranges.push_back({0, ImageBytes(request_)});
  }

  void Cancel() override {
    std::shared_ptr<Transfer> current;
    {
      MutexLock lock(mutex_);
      cancelled_ = true;
      current = current_;
    }
    if (current != nullptr) current->Cancel();
  }

  // From Begin, then from each attempt's OnDone.
  void Start() {
    const int attempt = ++attempts_;
    const Place& place = places_[at_];
    Request request = request_;
    request.address = place.peer.address;
    request.ticket = place.peer.ticket;
    if (IsRelay(place)) DropBase(request);  // which is shown no ticket of the store's
    // A relay that is slow, or says for ever that bytes will come, leaves time to ask another.
    const Tick left = ends_at_ - clock_.Now();
    request.options.deadline_ms = std::max<Tick>(1, IsRelay(place) ? left / 2 : left);
    if (!AtLastPlace()) {
      request.options.idle_deadline_ms = std::min(request.options.idle_deadline_ms, kTrialIdleMs);
    }
    auto transfer = StartOn(*place.transport, std::move(request), on_range_,
                            [self = this->shared_from_this()](Outcome outcome) {
                              self->HandleDone(std::move(outcome));
                            });
    bool cancelled;
    {
      MutexLock lock(mutex_);
      // An attempt that ended at once may have started its successor already: keep the latest.
      if (attempt > current_attempt_) {
        current_ = transfer;
        current_attempt_ = attempt;
      }
      cancelled = cancelled_;
    }
    if (cancelled) transfer->Cancel();
  }

 private:
  void HandleDone(Outcome outcome) {
    total_.bytes += outcome.bytes;
    total_.spared += outcome.spared;
    for (const Range& range : outcome.done.Ranges()) total_.done.Add(range).IgnoreError();
    total_.transport = outcome.transport;
    total_.status = outcome.status;
    // Where an image was told by what has changed, the older one may be wrong on the other side, and
    // the image sound: the same peer is asked for its bytes.
    const bool told_wrong =
        absl::IsDataLoss(outcome.status) && !IsRelay(places_[at_]) && DropBase(request_);
    const bool lost = absl::IsUnavailable(outcome.status);
    std::vector<Range> missing;
    for (const Range& range : request_.ranges) {
      for (const Range& left : outcome.done.Missing(range)) missing.push_back(left);
    }
    // All of it came, so that the bad end concerns nobody.
    if ((lost || FailedWithPeerAlone(request_, outcome.status)) && missing.empty() &&
        !request_.ranges.empty()) {
      total_.status = absl::OkStatus();
      return Finish();
    }
    const bool goes_on = lost || told_wrong || RelayFailed(outcome.status) ||
                         (FailedThereAlone(outcome.status) && !AtLastPlace()) ||
                         (FailedWithPeerAlone(request_, outcome.status) && AnotherPeerFollows());
    if (attempts_ >= kAttemptsMax || clock_.Now() >= ends_at_ || !goes_on) return Finish();
    request_.ranges = std::move(missing);
    const bool is_asked_again = lost && outcome.bytes > 0 && !IsRelay(places_[at_]);
    if (!told_wrong && !is_asked_again) ++at_;
    if (at_ == places_.size()) return Finish();
    Start();
  }

  static bool IsRelay(const Place& place) { return SchemeOf(place.peer.address) == kRelayScheme; }
  // Whatever it does: one that is stopped cancels its streams, and one that breaks the protocol is no
  // fault of this request's.
  bool RelayFailed(const absl::Status& status) {
    MutexLock lock(mutex_);
    return IsRelay(places_[at_]) && !status.ok() && !cancelled_;
  }
  bool AtLastPlace() const { return at_ + 1 == places_.size(); }
  bool AnotherPeerFollows() const {
    return std::any_of(
        places_.begin() + static_cast<std::ptrdiff_t>(at_) + 1, places_.end(),
        [&](const Place& place) { return place.peer.address != places_[at_].peer.address; });
  }

  void Finish() {
    {
      MutexLock lock(mutex_);
      // The transfer's callback holds this object, so that each would keep the other for ever. No
      // Start that is still under way may set it again.
      current_ = nullptr;
      current_attempt_ = kAttemptsMax + 1;
    }
    // The callbacks may own this object, too.
    on_range_ = nullptr;
    std::exchange(on_done_, nullptr)(std::move(total_));
  }

  const std::vector<Place> places_;
  Request request_;
  OnRange on_range_;
  OnDone on_done_;
  const SteadyClock clock_;
  const Tick ends_at_;
  Outcome total_;
  size_t at_ = 0;
  int attempts_ = 0;

  Mutex mutex_;
  std::shared_ptr<Transfer> current_ LORRY_GUARDED_BY(mutex_);
  int current_attempt_ LORRY_GUARDED_BY(mutex_) = 0;
  bool cancelled_ LORRY_GUARDED_BY(mutex_) = false;
};

// Stands for a transfer that could not begin.
class Ended final : public Transfer {
 public:
  void Cancel() override {}
};

}  // namespace

bool IsFull(const absl::Status& status) {
  const std::string reason = ReasonOf(status);
  return reason == "TOO_MANY_SESSIONS" || reason == "SERVER_BUSY";
}

TransportSet::TransportSet(std::vector<std::unique_ptr<Transport>> transports)
    : transports_(std::move(transports)) {}

TransportSet::~TransportSet() {
  // In order, which a vector does not promise: an attempt that ends as its transport is destroyed
  // may go on at a later transport, which must still be there, but never at an earlier one.
  for (auto& transport : transports_) transport.reset();
}

Transport* TransportSet::Find(std::string_view name) const {
  for (const auto& transport : transports_) {
    if (transport->name() == name) return transport.get();
  }
  return nullptr;
}

template <typename Request>
std::shared_ptr<Transfer> TransportSet::Begin(const std::vector<Source>& peers, Request request,
                                              OnRange on_range, OnDone on_done) {
  std::vector<typename Attempts<Request>::Place> places;
  for (const auto& transport : transports_) {
    for (const Source& peer : peers) {
      if (SchemeOf(peer.address) == transport->scheme()) places.push_back({peer, transport.get()});
    }
  }
  if (places.empty()) {
    on_done({.status = Error(absl::StatusCode::kFailedPrecondition, "NO_TRANSPORT",
                             absl::StrCat("none of the ", peers.size(),
                                          " addresses has a transport that this process speaks"))});
    return std::make_shared<Ended>();
  }
  auto attempts = std::make_shared<Attempts<Request>>(std::move(places), std::move(request),
                                                      std::move(on_range), std::move(on_done));
  attempts->Start();
  return attempts;
}

std::shared_ptr<Transfer> TransportSet::Fetch(const std::vector<Source>& sources,
                                              FetchRequest request, OnRange on_range,
                                              OnDone on_done) {
  return Begin(sources, std::move(request), std::move(on_range), std::move(on_done));
}

std::shared_ptr<Transfer> TransportSet::Push(std::vector<std::string> addresses,
                                             PushRequest request, OnRange on_range,
                                             OnDone on_done) {
  std::vector<Source> peers;
  for (std::string& address : addresses) peers.push_back({std::move(address), request.ticket});
  return Begin(peers, std::move(request), std::move(on_range), std::move(on_done));
}

}  // namespace lorry::transfer
