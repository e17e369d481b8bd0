// The service: a reactor for each stream. One operation at a time, so flow control is HTTP/2's own.
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <optional>
#include <string>
#include <utility>

#include "lib/base/error.h"
#include "lib/rpc/status.h"
#include "lib/transfer/delta.h"
#include "lib/transfer/doorstep.h"
#include "lib/transfer/grpc/convert.h"
#include "lib/transfer/grpc/grpc_transport.h"
#include "lib/transfer/grpc/streams.h"
#include "lib/transfer/transport_set.h"
#include "lorry/transfer/v1/transfer.grpc.pb.h"

namespace lorry::transfer {
namespace {

// As the GetRequest's comment says.
constexpr int kAskedRangesMax = 65'536;
// As the PutRequest's comment says.
constexpr int kMoreChunksMax = 4'096;
// How often a receiver hears that the bytes which it waits for are still coming: it leaves a place
// where it hears nothing for kTrialIdleMs.
constexpr Tick kStillComingMs = kTrialIdleMs / 4;

// What the service and its streams share.
struct Shared {
  ServerLimits limits;
  rpc::Gate& gate;
  const TicketKeys& keys;
  TransferHandler& handler;
  Doorstep doorstep{limits.ticketless_max, limits.ticketless_per_host_max};
  std::atomic<int> admitted{0};  // streams that have shown a ticket
  Counters counters;
  Streams streams;
};

// What both kinds of stream do: count themselves, and end when nothing moves. `Owner` is kept by
// itself until gRPC is done with it; handlers' late answers hold it weakly.
template <typename Owner>
class Stream : public SweptStream, public std::enable_shared_from_this<Owner> {
 public:
  // SweptStream
  void Sweep(Tick now) override {
    MutexLock lock(mutex_);
    const Tick allowed =
        admitted_ ? shared_.limits.idle_deadline_ms : shared_.limits.ticket_deadline_ms;
    if (now - progressed_at_ < allowed) return Retry();
    if (GivesWay()) return FinishLocked(IdleFor(allowed));
    FailLocked(IdleFor(allowed));
  }
  void Abort() override { Leave("the server closes"); }

 protected:
  Stream(Shared& shared, grpc::CallbackServerContext& context)
      : shared_(shared), context_(context) {
    ++shared_.counters.sessions_opened;
    ++shared_.counters.sessions_open;
  }

  // Takes the stream into account, or ends it. Its ticket is there already, or is to come.
  enum class Ticket { kHere, kToCome };
  bool Register(Owner* owner, Ticket ticket) {
    self_ = std::shared_ptr<Owner>(owner);
    absl::Status status = Enter(ticket);
    registered_ = status.ok() && shared_.streams.Add(this);
    if (registered_) return true;
    if (status.ok()) {
      Leave("the server closes");
    } else {
      MutexLock lock(mutex_);
      FailLocked(std::move(status));
    }
    return false;
  }
  // The ticket has come: from the doorstep into the house, if there is room.
  absl::StatusOr<TicketClaims> AdmitLocked(std::string_view ticket, Direction direction)
      LORRY_REQUIRES(mutex_) {
    LORRY_ASSIGN_OR_RETURN(TicketClaims claims, Admit(shared_.keys, ticket, direction, caller_));
    object_ = claims.object;
    if (++shared_.admitted > shared_.limits.sessions_max) {
      --shared_.admitted;
      return TooManySessions(shared_.limits.sessions_max);
    }
    admitted_ = true;
    place_.Leave();
    return claims;
  }
  // The right to one more image, which the caller need not have.
  std::optional<TicketClaims> AlsoAdmitLocked(std::string_view ticket) LORRY_REQUIRES(mutex_) {
    if (ticket.empty()) return std::nullopt;
    auto claims = Admit(shared_.keys, ticket, Direction::kGet, caller_);
    return claims.ok() ? std::optional(*std::move(claims)) : std::nullopt;
  }
  void HandleDone() {
    if (registered_) shared_.streams.Remove(this);
    --shared_.counters.sessions_open;
    {
      MutexLock lock(mutex_);
      finished_ = true;
      if (admitted_) --shared_.admitted;
      place_.Leave();
    }
    self_ = nullptr;  // the last owner, unless a handler is just answering
  }
  // The peer has gone, or is to go, and nothing has failed. To gRPC's server a call that was
  // cancelled and a connection that broke are one; whoever lost it knows.
  void Leave(std::string_view how) {
    MutexLock lock(mutex_);
    FinishLocked(ConnectionLost(how));
  }
  void FailLocked(absl::Status status) LORRY_REQUIRES(mutex_) {
    if (finished_) return;
    shared_.handler.OnFailed(
        {.transport = "grpc", .peer = context_.peer(), .object = object_, .why = status});
    FinishLocked(std::move(status));
  }
  // The status goes out once no operation is in flight; one that waits for a stopped peer is
  // cancelled.
  void FinishLocked(absl::Status status) LORRY_REQUIRES(mutex_) {
    if (finished_) return;
    finished_ = true;
    if (busy_) context_.TryCancel();
    SendStatus(rpc::ToGrpc(status));
  }
  void Progress() LORRY_REQUIRES(mutex_) { progressed_at_ = clock_.Now(); }
  virtual void SendStatus(const grpc::Status& status) = 0;
  virtual void Retry() LORRY_REQUIRES(mutex_) {}
  // Whether it rests through no fault of its peer, so that its end is no failure.
  virtual bool GivesWay() const LORRY_REQUIRES(mutex_) { return false; }

  Shared& shared_;
  grpc::CallbackServerContext& context_;  // gRPC's, valid until OnDone
  const SteadyClock clock_;
  Mutex mutex_;
  bool busy_ LORRY_GUARDED_BY(mutex_) = false;      // an operation is in flight
  bool finished_ LORRY_GUARDED_BY(mutex_) = false;  // Finish was called
  Tick progressed_at_ LORRY_GUARDED_BY(mutex_) = clock_.Now();
  Doorstep::Place place_ LORRY_GUARDED_BY(mutex_);
  bool admitted_ LORRY_GUARDED_BY(mutex_) = false;
  std::string object_ LORRY_GUARDED_BY(mutex_);  // that the ticket opens
  std::shared_ptr<Owner> self_;
  bool registered_ = false;

 private:
  absl::Status Enter(Ticket ticket) {
    LORRY_ASSIGN_OR_RETURN(const rpc::Caller caller,
                           shared_.gate.AdmitStream(context_, rpc::Role::kReader, rpc::kOfCaller));
    if (!shared_.gate.open_to_all()) caller_ = caller.name;
    if (ticket == Ticket::kHere) return absl::OkStatus();
    MutexLock lock(mutex_);
    LORRY_ASSIGN_OR_RETURN(place_, shared_.doorstep.Enter(context_.peer()));
    return absl::OkStatus();
  }
  std::string caller_;  // constant after Register
};

class GetStream final : public grpc::ServerWriteReactor<pb::GetResponse>, public Stream<GetStream> {
 public:
  GetStream(Shared& shared, grpc::CallbackServerContext& context) : Stream(shared, context) {}

  void Begin(const pb::GetRequest& request) {
    if (!Register(this, Ticket::kHere)) return;
    absl::StatusOr<TicketClaims> claims;
    {
      MutexLock lock(mutex_);
      claims = AdmitLocked(request.ticket(), Direction::kGet);
      absl::Status status = claims.status();
      if (status.ok()) status = Choose(*claims, request);
      if (!status.ok()) return FailLocked(std::move(status));
      base_claims_ = AlsoAdmitLocked(request.base_ticket());
    }
    shared_.handler.OpenGet(*claims, [weak = weak_from_this()](absl::StatusOr<GetSource> source) {
      if (const auto self = weak.lock()) self->HandleOpened(std::move(source));
    });
  }

  void OnWriteDone(bool ok) override {
    MutexLock lock(mutex_);
    busy_ = false;
    if (finished_) return;
    if (!ok) return FinishLocked(ConnectionLost("the receiver has gone"));
    if (response_.has_opened()) {
      // Those who wait for a trainer that rests are the first to go where others want their places.
      const bool has_room = 2 * shared_.admitted <= shared_.limits.sessions_max;
      if (has_room && source_.arrivals != nullptr && source_.arrivals->MayRest()) Progress();
    } else {
      Progress();
      shared_.counters.bytes_sent += chunks_[next_ - 1].length;
    }
    SendNext();
  }
  void OnCancel() override { Leave("the peer has gone"); }
  void OnDone() override { HandleDone(); }

 private:
  void SendStatus(const grpc::Status& status) override { Finish(status); }
  bool GivesWay() const override LORRY_REQUIRES(mutex_) {
    return waiting_ && source_.arrivals != nullptr && source_.arrivals->MayRest();
  }

  // The next chunk. One that is still coming waits for the next sweep.
  void SendNext() LORRY_REQUIRES(mutex_) {
    if (next_ == chunks_.size()) return FinishLocked(absl::OkStatus());
    const Range& range = chunks_[next_];
    const absl::StatusOr<bool> here =
        source_.arrivals == nullptr ? true : source_.arrivals->Has(range);
    // What was coming has ended, as those are told who sent it.
    if (!here.ok()) return FinishLocked(here.status());
    waiting_ = !*here;
    if (waiting_) return;
    ++next_;
    const Checksum sum = PieceChecksums(range, source_.bytes, source_.leaves)[0];
    if (!FillDelta(range, sum)) {
      FillChunk(*response_.mutable_chunk(), range, source_.bytes.data() + range.offset, sum);
    }
    Send();
  }
  // False: the range is sent as it is.
  bool FillDelta(const Range& range, const Checksum& sum) LORRY_REQUIRES(mutex_) {
    if (base_.bytes.size() != source_.bytes.size()) return false;
    std::optional<std::string> data =
        EncodeDelta(base_.bytes.subspan(range.offset, range.length),
                    source_.bytes.subspan(range.offset, range.length));
    if (!data) return false;
    pb::Delta& delta = *response_.mutable_delta();
    delta.set_offset(range.offset);
    delta.set_length(range.length);
    delta.set_data(*std::move(data));
    delta.set_checksum(sum.bytes.data(), sum.bytes.size());
    return true;
  }
  void Send() LORRY_REQUIRES(mutex_) {
    busy_ = true;
    sent_at_ = clock_.Now();
    StartWrite(&response_);
  }
  void Retry() override LORRY_REQUIRES(mutex_) {
    if (!waiting_ || busy_ || finished_) return;
    SendNext();
    if (!waiting_ || finished_ || clock_.Now() - sent_at_ < kStillComingMs) return;
    response_.mutable_opened()->set_image_bytes(source_.bytes.size());
    Send();
  }

  absl::Status Choose(const TicketClaims& claims, const pb::GetRequest& request) {
    if (request.ranges_size() > kAskedRangesMax)
      return ProtocolViolation("too many ranges in one request");
    std::vector<Range> ranges;
    for (const pb::ByteRange& range : request.ranges())
      ranges.push_back({range.offset(), range.length()});
    if (ranges.empty()) ranges = claims.ranges;
    if (ranges.empty() && claims.image_bytes > 0) ranges.push_back({0, claims.image_bytes});
    for (const Range& range : ranges) {
      LORRY_RETURN_IF_ERROR(CheckAllowed(claims, range));
    }
    // As a set: what is asked for twice is sent once, so that a request costs no more than the image
    // has leaves and its ranges have ends.
    chunks_ = CutRanges(RangeSet(ranges).Ranges(), kLeafBytes);
    return absl::OkStatus();
  }

  void HandleOpened(absl::StatusOr<GetSource> source) {
    std::optional<TicketClaims> base;
    {
      MutexLock lock(mutex_);
      if (finished_) return;
      if (!source.ok()) return FailLocked(source.status());
      source_ = *std::move(source);
      for (const Range& chunk : chunks_) {
        if (absl::Status inside = CheckRange(chunk, source_.bytes.size()); !inside.ok()) {
          return FailLocked(std::move(inside));
        }
      }
      Progress();
      base = std::move(base_claims_);
    }
    if (!base) return SendOpened({});
    // Not under the lock, as in Begin.
    shared_.handler.OpenGet(*base, [weak = weak_from_this()](absl::StatusOr<GetSource> opened) {
      if (const auto self = weak.lock()) self->SendOpened(std::move(opened).value_or(GetSource()));
    });
  }
  void SendOpened(GetSource base) {
    MutexLock lock(mutex_);
    if (finished_) return;
    if (base.arrivals == nullptr) base_ = std::move(base);
    response_.mutable_opened()->set_image_bytes(source_.bytes.size());
    Send();
  }

  std::vector<Range> chunks_;
  size_t next_ = 0;
  bool waiting_ LORRY_GUARDED_BY(mutex_) = false;  // for bytes that are still coming
  Tick sent_at_ LORRY_GUARDED_BY(mutex_) = 0;
  GetSource source_;
  std::optional<TicketClaims> base_claims_ LORRY_GUARDED_BY(mutex_);
  GetSource base_ LORRY_GUARDED_BY(mutex_);  // empty: none
  pb::GetResponse response_;
};

class PutStream final : public grpc::ServerBidiReactor<pb::PutRequest, pb::PutResponse>,
                        public Stream<PutStream> {
 public:
  PutStream(Shared& shared, grpc::CallbackServerContext& context) : Stream(shared, context) {}

  void Begin() {
    if (!Register(this, Ticket::kToCome)) return;
    MutexLock lock(mutex_);
    Read();
  }

  void OnReadDone(bool ok) override {
    MutexLock lock(mutex_);
    busy_ = false;
    if (finished_) return;
    // Half-closed: every chunk was answered before the next was read.
    if (!ok)
      return FinishLocked(target_ == nullptr ? ProtocolViolation("nothing was opened")
                                             : absl::OkStatus());
    Progress();
    if (target_ == nullptr) {
      if (!request_.has_open())
        return FailLocked(ProtocolViolation("the first message has to open"));
      Open();
    } else if (!request_.has_chunk()) {
      FailLocked(ProtocolViolation("an upload is opened once"));
    } else if (request_.more_size() > kMoreChunksMax) {
      FailLocked(ProtocolViolation("a message has too many chunks"));
    } else {
      Take();
    }
  }
  void OnWriteDone(bool ok) override {
    MutexLock lock(mutex_);
    busy_ = false;
    if (finished_) return;
    if (!ok) return FinishLocked(ConnectionLost("the sender has gone"));
    Progress();
    Read();
  }
  void OnCancel() override { Leave("the peer has gone"); }
  void OnDone() override { HandleDone(); }

 private:
  void SendStatus(const grpc::Status& status) override { Finish(status); }
  void Retry() override LORRY_REQUIRES(mutex_) {
    if (waiting_ && !finished_) Take();
  }
  void Read() LORRY_REQUIRES(mutex_) {
    busy_ = true;
    StartRead(&request_);
  }
  void Open() LORRY_REQUIRES(mutex_) {
    auto claims = AdmitLocked(request_.open().ticket(), Direction::kPut);
    if (!claims.ok()) return FailLocked(claims.status());
    claims_ = *std::move(claims);
    // Handlers may answer at once, on this thread: not under the lock.
    mutex_.unlock();
    shared_.handler.OpenPut(
        claims_, [weak = weak_from_this()](absl::StatusOr<std::shared_ptr<PutTarget>> target) {
          if (const auto self = weak.lock()) self->HandleOpened(std::move(target));
        });
    mutex_.lock();
  }
  void HandleOpened(absl::StatusOr<std::shared_ptr<PutTarget>> target) {
    MutexLock lock(mutex_);
    if (finished_) return;
    if (!target.ok()) return FailLocked(target.status());
    target_ = *std::move(target);
    Progress();
    response_.mutable_opened()->set_image_bytes(target_->image_bytes());
    busy_ = true;
    StartWrite(&response_);
  }

  // The chunks of one message, then one answer. A busy range waits for the next sweep.
  void Take() LORRY_REQUIRES(mutex_) {
    waiting_ = false;
    for (; taken_ <= request_.more_size(); ++taken_) {
      const pb::Chunk& chunk = taken_ == 0 ? request_.chunk() : request_.more(taken_ - 1);
      absl::Status status = TakeChunk(chunk);
      if (ReasonOf(status) == "RANGE_BUSY") {
        waiting_ = true;
        return;
      }
      if (!status.ok()) return FailLocked(std::move(status));
      shared_.counters.bytes_received += chunk.data().size();
      pb::ByteRange& accepted = *response_.mutable_accepted();
      accepted.set_offset(chunk.offset());
      accepted.set_length(chunk.data().size());
    }
    taken_ = 0;
    busy_ = true;
    StartWrite(&response_);
  }
  // Reserved, copied, verified.
  absl::Status TakeChunk(const pb::Chunk& chunk) LORRY_REQUIRES(mutex_) {
    LORRY_ASSIGN_OR_RETURN(const Range range, ShapeOf(chunk));
    LORRY_RETURN_IF_ERROR(CheckAllowed(claims_, range));
    LORRY_ASSIGN_OR_RETURN(PutTarget::Slot slot, target_->Begin(range));
    std::memcpy(slot.destination().data(), chunk.data().data(), chunk.data().size());
    const Checksum sum = ChecksumIn(chunk);
    return target_->Finish(std::move(slot), std::span(&sum, 1));
  }

  TicketClaims claims_;
  std::shared_ptr<PutTarget> target_;
  bool waiting_ LORRY_GUARDED_BY(mutex_) = false;
  int taken_ LORRY_GUARDED_BY(mutex_) = 0;  // chunks of request_ that are in place
  pb::PutRequest request_;
  pb::PutResponse response_;
};

class Service final : public GrpcTransferService {
 public:
  Service(ServerLimits limits, rpc::Gate& gate, const TicketKeys& keys, TransferHandler& handler)
      : shared_{.limits = limits, .gate = gate, .keys = keys, .handler = handler}, rpc_(shared_) {}
  grpc::Service* service() override { return &rpc_; }
  void Close() override { shared_.streams.CloseAndWait(); }
  std::map<std::string, TransportStats> stats() const override {
    return {{"grpc", shared_.counters.Snapshot()}};
  }

 private:
  class Rpc final : public pb::TransferService::CallbackService {
   public:
    explicit Rpc(Shared& shared) : shared_(shared) {}
    grpc::ServerWriteReactor<pb::GetResponse>* Get(grpc::CallbackServerContext* context,
                                                   const pb::GetRequest* request) override {
      auto* stream = new GetStream(shared_, *context);
      stream->Begin(*request);
      return stream;
    }
    grpc::ServerBidiReactor<pb::PutRequest, pb::PutResponse>* Put(
        grpc::CallbackServerContext* context) override {
      auto* stream = new PutStream(shared_, *context);
      stream->Begin();
      return stream;
    }

   private:
    Shared& shared_;
  };

  Shared shared_;
  Rpc rpc_;
};

}  // namespace

std::unique_ptr<GrpcTransferService> CreateGrpcTransferService(ServerLimits limits, rpc::Gate& gate,
                                                               const TicketKeys& keys,
                                                               TransferHandler& handler) {
  return std::make_unique<Service>(limits, gate, keys, handler);
}

}  // namespace lorry::transfer
