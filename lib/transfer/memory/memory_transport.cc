#include "lib/transfer/memory/memory_transport.h"

#include <charconv>
#include <chrono>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/base/error.h"
#include "lib/base/mutex.h"
#include "lib/transfer/session.h"

namespace lorry::transfer {
namespace {

constexpr auto kBusyRetry = std::chrono::milliseconds(2);

using Opened = std::variant<absl::Status, GetSource, std::shared_ptr<PutTarget>>;

// What a server and the transfers that use it share.
struct Hub {
  ServerLimits limits;
  const TicketKeys& keys;
  TransferHandler& handler;
  Counters counters;
  Mutex mutex;
  CondVar changed;
  bool closed LORRY_GUARDED_BY(mutex) = false;
  int sessions LORRY_GUARDED_BY(mutex) = 0;

  Hub(ServerLimits l, const TicketKeys& k, TransferHandler& h) : limits(l), keys(k), handler(h) {}
  bool IsClosed() {
    MutexLock lock(mutex);
    return closed;
  }
};

// Servers of this process by number.
class Directory {
 public:
  static Directory& Get() {
    static Directory* directory = new Directory;
    return *directory;
  }
  uint64_t Add(std::shared_ptr<Hub> hub) {
    MutexLock lock(mutex_);
    hubs_[++last_] = std::move(hub);
    return last_;
  }
  void Remove(uint64_t number) {
    MutexLock lock(mutex_);
    hubs_.erase(number);
  }
  std::shared_ptr<Hub> Find(std::string_view number_text) {
    uint64_t number = 0;
    std::from_chars(number_text.data(), number_text.data() + number_text.size(), number);
    MutexLock lock(mutex_);
    const auto found = hubs_.find(number);
    return found == hubs_.end() ? nullptr : found->second;
  }

 private:
  Mutex mutex_;
  std::map<uint64_t, std::shared_ptr<Hub>> hubs_ LORRY_GUARDED_BY(mutex_);
  uint64_t last_ LORRY_GUARDED_BY(mutex_) = 0;
};

class MemoryServer final : public TransferServer {
 public:
  MemoryServer(ServerLimits limits, const TicketKeys& keys, TransferHandler& handler)
      : hub_(std::make_shared<Hub>(limits, keys, handler)), number_(Directory::Get().Add(hub_)) {}
  ~MemoryServer() override {
    Directory::Get().Remove(number_);
    MutexLock lock(hub_->mutex);
    hub_->closed = true;
    hub_->changed.notify_all();
    while (hub_->sessions > 0) hub_->changed.wait(hub_->mutex);
  }
  std::string address() const override { return absl::StrCat("memory://", number_); }
  TransportStats stats() const override { return hub_->counters.Snapshot(); }

 private:
  const std::shared_ptr<Hub> hub_;
  const uint64_t number_;
};

// One transfer, on a thread of its own from beginning to end.
class MemoryTransfer final : public Transfer {
 public:
  MemoryTransfer(Counters& counters, FetchRequest fetch, OnRange on_range, OnDone on_done)
      : counters_(counters),
        direction_(Direction::kGet),
        address_(std::move(fetch.address)),
        ticket_(std::move(fetch.ticket)),
        ranges_(std::move(fetch.ranges)),
        destination_(fetch.destination),
        leaves_(std::move(fetch.leaves)),
        options_(fetch.options),
        on_range_(std::move(on_range)),
        on_done_(std::move(on_done)) {}
  MemoryTransfer(Counters& counters, PushRequest push, OnRange on_range, OnDone on_done)
      : counters_(counters),
        direction_(Direction::kPut),
        address_(std::move(push.address)),
        ticket_(std::move(push.ticket)),
        ranges_(std::move(push.ranges)),
        source_(push.source),
        leaves_(std::move(push.leaves)),
        options_(push.options),
        on_range_(std::move(on_range)),
        on_done_(std::move(on_done)) {}

  void Cancel() override {
    MutexLock lock(mutex_);
    cancelled_ = true;
    changed_.notify_all();
  }

  void Run() {
    ++counters_.sessions_opened;
    ++counters_.sessions_open;
    const uint64_t image_bytes =
        direction_ == Direction::kGet ? destination_.size() : source_.size();
    absl::Status status = CheckRequest(options_, ranges_, leaves_, image_bytes);
    if (status.ok()) {
      plan_.emplace(options_, ranges_, image_bytes, clock_.Now());
      status = Connect();
    }
    --counters_.sessions_open;
    Outcome outcome{.status = std::move(status), .transport = "memory"};
    if (plan_) {
      outcome.done = plan_->done();
      outcome.bytes = plan_->bytes();
    }
    on_done_(std::move(outcome));
  }

 private:
  absl::Status Connect();
  absl::Status Serve(Hub& hub);
  absl::Status Move(Hub& hub, const TicketClaims& claims, const Opened& opened);
  absl::Status Get(const GetSource& source, const Range& range, std::vector<Checksum>& pieces);
  absl::Status Put(PutTarget& target, const Range& range, std::vector<Checksum>& pieces);
  absl::Status StillWanted(Hub& hub);

  Counters& counters_;
  const Direction direction_;
  const std::string address_, ticket_;
  const std::vector<Range> ranges_;
  const std::span<std::byte> destination_;
  const std::span<const std::byte> source_;
  const std::vector<Checksum> leaves_;
  const TransferOptions options_;
  const OnRange on_range_;
  const OnDone on_done_;
  const SteadyClock clock_;
  std::optional<Plan> plan_;
  Mutex mutex_;
  CondVar changed_;
  bool cancelled_ LORRY_GUARDED_BY(mutex_) = false;
};

absl::Status MemoryTransfer::Connect() {
  const std::shared_ptr<Hub> hub = Directory::Get().Find(HostPortOf(address_));
  if (hub == nullptr) return ConnectionLost("nobody listens there");
  absl::Status status;
  {
    MutexLock lock(hub->mutex);
    if (hub->closed) return ConnectionLost("the server closes");
    if (hub->sessions >= hub->limits.sessions_max)
      status = TooManySessions(hub->limits.sessions_max);
    ++hub->sessions;
  }
  ++hub->counters.sessions_opened;
  ++hub->counters.sessions_open;
  if (status.ok()) status = Serve(*hub);
  // Whoever cancels has left.
  if (!status.ok() && !absl::IsCancelled(status))
    hub->handler.OnFailed({.transport = "memory", .peer = "", .object = "", .why = status});
  --hub->counters.sessions_open;
  MutexLock lock(hub->mutex);
  --hub->sessions;
  hub->changed.notify_all();
  return status;
}

absl::Status MemoryTransfer::StillWanted(Hub& hub) {
  {
    MutexLock lock(mutex_);
    if (cancelled_) return Cancelled();
  }
  if (hub.IsClosed()) return ConnectionLost("the server closed");
  return plan_->CheckDeadlines(clock_.Now());
}

absl::Status MemoryTransfer::Serve(Hub& hub) {
  LORRY_ASSIGN_OR_RETURN(const TicketClaims claims, Admit(hub.keys, ticket_, direction_, ""));
  // Shared with the handler's answer, which may come when this transfer has long ended.
  struct Answer {
    Mutex mutex;
    std::optional<Opened> opened LORRY_GUARDED_BY(mutex);
  };
  const auto answer = std::make_shared<Answer>();
  const auto take = [answer](auto result) {
    MutexLock lock(answer->mutex);
    if (result.ok()) {
      answer->opened = *std::move(result);
    } else {
      answer->opened = result.status();
    }
  };
  if (direction_ == Direction::kGet) {
    hub.handler.OpenGet(claims, take);
  } else {
    hub.handler.OpenPut(claims, take);
  }
  for (;;) {
    LORRY_RETURN_IF_ERROR(StillWanted(hub));
    {
      MutexLock lock(answer->mutex);
      if (answer->opened) return Move(hub, claims, *std::exchange(answer->opened, std::nullopt));
    }
    MutexLock lock(mutex_);
    changed_.wait_for(mutex_, kBusyRetry);
  }
}

absl::Status MemoryTransfer::Move(Hub& hub, const TicketClaims& claims, const Opened& opened) {
  if (const auto* refused = std::get_if<absl::Status>(&opened)) return *refused;
  const auto* source = std::get_if<GetSource>(&opened);
  if (source != nullptr && source->arrivals != nullptr) return StillComing();
  const auto* target = std::get_if<std::shared_ptr<PutTarget>>(&opened);
  const uint64_t theirs = source != nullptr ? source->bytes.size() : (*target)->image_bytes();
  const uint64_t ours = source != nullptr ? destination_.size() : source_.size();
  if (theirs != ours) {
    return absl::InvalidArgumentError(
        absl::StrCat("the image has ", theirs, " bytes, the memory for it ", ours));
  }
  for (Range range; plan_->Next(range);) {
    LORRY_RETURN_IF_ERROR(StillWanted(hub));
    LORRY_RETURN_IF_ERROR(CheckAllowed(claims, range));
    std::vector<Checksum> pieces;
    for (;;) {
      absl::Status moved =
          source != nullptr ? Get(*source, range, pieces) : Put(**target, range, pieces);
      if (moved.ok()) break;
      if (ReasonOf(moved) != "RANGE_BUSY") return moved;
      LORRY_RETURN_IF_ERROR(StillWanted(hub));
      MutexLock lock(mutex_);
      changed_.wait_for(mutex_, kBusyRetry);
    }
    (source != nullptr ? hub.counters.bytes_sent : hub.counters.bytes_received) += range.length;
    (source != nullptr ? counters_.bytes_received : counters_.bytes_sent) += range.length;
    plan_->OnArrived(range, clock_.Now());
    if (on_range_) on_range_(range, pieces);
  }
  return absl::OkStatus();
}

absl::Status MemoryTransfer::Get(const GetSource& source, const Range& range,
                                 std::vector<Checksum>& pieces) {
  const auto to = destination_.subspan(range.offset, range.length);
  std::memcpy(to.data(), source.bytes.data() + range.offset, range.length);
  pieces = PieceChecksums(range, source.bytes, source.leaves);
  return VerifyRange(range, to, pieces, leaves_, destination_.size());
}

absl::Status MemoryTransfer::Put(PutTarget& target, const Range& range,
                                 std::vector<Checksum>& pieces) {
  LORRY_ASSIGN_OR_RETURN(PutTarget::Slot slot, target.Begin(range));
  std::memcpy(slot.destination().data(), source_.data() + range.offset, range.length);
  pieces = PieceChecksums(range, source_, leaves_);
  return target.Finish(std::move(slot), pieces);
}

class MemoryTransport final : public Transport {
 public:
  ~MemoryTransport() override {
    std::map<uint64_t, Running> running;
    {
      MutexLock lock(mutex_);
      stopping_ = true;
      running.swap(running_);
    }
    for (auto& [number, each] : running) each.transfer->Cancel();
    for (auto& [number, each] : running) each.thread.join();
  }
  std::string_view name() const override { return "memory"; }
  std::string_view scheme() const override { return "memory"; }
  std::shared_ptr<Transfer> Fetch(FetchRequest request, OnRange on_range, OnDone on_done) override {
    return Begin(std::move(request), std::move(on_range), std::move(on_done));
  }
  std::shared_ptr<Transfer> Push(PushRequest request, OnRange on_range, OnDone on_done) override {
    return Begin(std::move(request), std::move(on_range), std::move(on_done));
  }
  TransportStats stats() const override { return counters_.Snapshot(); }

 private:
  struct Running {
    std::shared_ptr<MemoryTransfer> transfer;
    std::thread thread;
  };

  template <typename Request>
  std::shared_ptr<Transfer> Begin(Request request, OnRange on_range, OnDone on_done) {
    auto transfer = std::make_shared<MemoryTransfer>(counters_, std::move(request),
                                                     std::move(on_range), std::move(on_done));
    MutexLock lock(mutex_);
    for (const uint64_t ended : std::exchange(ended_, {})) {
      running_.at(ended).thread.join();
      running_.erase(ended);
    }
    const uint64_t number = ++last_;
    Running& running = running_[number];
    running.transfer = transfer;
    running.thread = std::thread([this, transfer, number] {
      transfer->Run();
      MutexLock done(mutex_);
      if (!stopping_) ended_.push_back(number);
    });
    return transfer;
  }

  Counters counters_;
  Mutex mutex_;
  std::map<uint64_t, Running> running_ LORRY_GUARDED_BY(mutex_);
  std::vector<uint64_t> ended_ LORRY_GUARDED_BY(mutex_);
  uint64_t last_ LORRY_GUARDED_BY(mutex_) = 0;
  bool stopping_ LORRY_GUARDED_BY(mutex_) = false;
};

}  // namespace

std::unique_ptr<TransferServer> StartMemoryServer(ServerLimits limits, const TicketKeys& keys,
                                                  TransferHandler& handler) {
  return std::make_unique<MemoryServer>(limits, keys, handler);
}

std::unique_ptr<Transport> CreateMemoryTransport() { return std::make_unique<MemoryTransport>(); }

}  // namespace lorry::transfer
