// The dialling side. Reactors hold the state of a transfer; the sweeper watches idle deadlines.
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/base/error.h"
#include "lib/rpc/callback_queue.h"
#include "lib/rpc/status.h"
#include "lib/runtime/loop.h"
#include "lib/transfer/delta.h"
#include "lib/transfer/grpc/convert.h"
#include "lib/transfer/grpc/grpc_transport.h"
#include "lib/transfer/grpc/streams.h"
#include "lorry/transfer/v1/transfer.grpc.pb.h"

namespace lorry::transfer {
namespace {

// What the transport and its transfers share.
struct Shared {
  const std::string name;  // the transport's
  Counters counters;
  Streams streams;
};

TransferOptions InChunks(TransferOptions options) {
  const uint64_t chunks = options.in_flight * options.range_bytes / kLeafBytes;
  options.in_flight = static_cast<int>(std::clamp<uint64_t>(chunks, 1, kInFlightMax));
  options.range_bytes = kLeafBytes;
  return options;
}

// Common to both directions. Kept alive by itself until gRPC is done with it.
template <typename Owner, typename Request>
class ClientStream : public Transfer,
                     public SweptStream,
                     public std::enable_shared_from_this<Owner> {
 public:
  void Cancel() override { Stop(Cancelled()); }
  void Sweep(Tick now) override {
    absl::Status late;
    {
      MutexLock lock(mutex_);
      late = plan_.CheckDeadlines(now);
    }
    if (!late.ok()) Stop(std::move(late));
  }
  void Abort() override { Stop(Cancelled()); }

 protected:
  ClientStream(Shared& shared, Request request, uint64_t image_bytes, OnRange on_range,
               transfer::OnDone on_done)
      : shared_(shared),
        request_(std::move(request)),
        on_range_(std::move(on_range)),
        on_done_(std::move(on_done)),
        plan_(InChunks(request_.options), request_.ranges, image_bytes, clock_.Now()) {
    ++shared_.counters.sessions_opened;
    ++shared_.counters.sessions_open;
    context_.set_deadline(std::chrono::system_clock::now() +
                          std::chrono::milliseconds(request_.options.deadline_ms));
  }

  bool Register() {
    self_ = this->shared_from_this();
    return shared_.streams.Add(this);
  }
  // The first reason wins over what gRPC says when the stream ends.
  void Stop(absl::Status why) {
    MutexLock lock(mutex_);
    StopLocked(std::move(why));
  }
  void StopLocked(absl::Status why) LORRY_REQUIRES(mutex_) {
    if (ended_ || !stopped_.ok()) return;
    stopped_ = std::move(why);
    context_.TryCancel();
  }
  void HandleDone(const grpc::Status& status) {
    Outcome outcome{.transport = shared_.name};
    {
      MutexLock lock(mutex_);
      ended_ = true;
      outcome.status = stopped_.ok() ? rpc::FromGrpc(status) : stopped_;
      if (outcome.status.ok() && !plan_.complete()) {
        outcome.status = ConnectionLost("the server ended the stream early");
      }
      outcome.done = plan_.done();
      outcome.bytes = plan_.bytes();
      outcome.spared = spared_;
    }
    Report(std::move(outcome));
  }
  void Report(Outcome outcome) {
    --shared_.counters.sessions_open;
    const auto self = std::move(self_);
    on_done_(std::move(outcome));
    shared_.streams.Remove(this);  // last: the transport may go now
  }

  Shared& shared_;
  const Request request_;
  const OnRange on_range_;
  const OnDone on_done_;
  const SteadyClock clock_;
  grpc::ClientContext context_;
  std::shared_ptr<Owner> self_;
  Mutex mutex_;
  Plan plan_ LORRY_GUARDED_BY(mutex_);
  uint64_t spared_ LORRY_GUARDED_BY(mutex_) = 0;  // as in Outcome
  absl::Status stopped_ LORRY_GUARDED_BY(mutex_);
  bool ended_ LORRY_GUARDED_BY(mutex_) = false;
};

class FetchStream final : public grpc::ClientReadReactor<pb::GetResponse>,
                          public ClientStream<FetchStream, FetchRequest> {
 public:
  FetchStream(Shared& shared, FetchRequest request, OnRange on_range, transfer::OnDone on_done)
      : ClientStream(shared, std::move(request), request.destination.size(), std::move(on_range),
                     std::move(on_done)) {}

  void Begin(std::unique_ptr<pb::TransferService::Stub> stub) {
    stub_ = std::move(stub);
    if (!Register()) return Report({.status = Cancelled(), .transport = shared_.name});
    message_.set_ticket(request_.ticket);
    if (HasBase()) message_.set_base_ticket(request_.base->ticket);
    for (const Range& range : RangeSet(request_.ranges).Ranges()) {
      pb::ByteRange* asked = message_.add_ranges();
      asked->set_offset(range.offset);
      asked->set_length(range.length);
    }
    stub_->async()->Get(&context_, &message_, this);
    StartRead(&response_);
    StartCall();
  }

  void OnReadDone(bool ok) override {
    if (!ok) return;  // OnDone says how it ended
    if (absl::Status taken = Take(); !taken.ok()) Stop(std::move(taken));
    StartRead(&response_);
  }
  void OnDone(const grpc::Status& status) override { HandleDone(status); }

 private:
  absl::Status Take() {
    if (response_.has_opened()) {
      if (response_.opened().image_bytes() == request_.destination.size()) {
        MutexLock lock(mutex_);
        plan_.OnProgress(clock_.Now());
        return absl::OkStatus();
      }
      return absl::InvalidArgumentError(
          absl::StrCat("the image has ", response_.opened().image_bytes(),
                       " bytes, the memory for it ", request_.destination.size()));
    }
    if (response_.has_delta()) return Take(response_.delta());
    const pb::Chunk& chunk = response_.chunk();
    LORRY_ASSIGN_OR_RETURN(const Range range, ShapeOf(chunk));
    LORRY_RETURN_IF_ERROR(Expect(range));
    return Accept(range, BytesOf(chunk), ChecksumIn(chunk));
  }
  absl::Status Take(const pb::Delta& delta) {
    if (!HasBase()) return ProtocolViolation("a delta to nothing");
    LORRY_ASSIGN_OR_RETURN(const Range range, ShapeOf(delta));
    LORRY_RETURN_IF_ERROR(Expect(range));
    decoded_.resize(range.length);
    LORRY_RETURN_IF_ERROR(DecodeDelta(
        delta.data(), request_.base->bytes.subspan(range.offset, range.length), decoded_));
    {
      MutexLock lock(mutex_);
      spared_ += range.length - std::min<uint64_t>(range.length, delta.data().size());
    }
    return Accept(range, decoded_, ChecksumIn(delta));
  }
  bool HasBase() const {
    return request_.base && request_.base->bytes.size() == request_.destination.size();
  }
  absl::Status Expect(const Range& range) {
    MutexLock lock(mutex_);
    if (!stopped_.ok()) return stopped_;
    Range expected;
    if (!plan_.Next(expected) || expected != range)
      return ProtocolViolation("bytes that were not asked for");
    return absl::OkStatus();
  }
  absl::Status Accept(const Range& range, std::span<const std::byte> bytes, const Checksum& sum) {
    LORRY_RETURN_IF_ERROR(VerifyRange(range, bytes, std::span(&sum, 1), request_.leaves,
                                      request_.destination.size()));
    std::memcpy(request_.destination.data() + range.offset, bytes.data(), range.length);
    shared_.counters.bytes_received += range.length;
    {
      MutexLock lock(mutex_);
      plan_.OnArrived(range, clock_.Now());
    }
    if (on_range_) on_range_(range, std::span(&sum, 1));
    return absl::OkStatus();
  }

  std::unique_ptr<pb::TransferService::Stub> stub_;
  pb::GetRequest message_;
  pb::GetResponse response_;
  std::vector<std::byte> decoded_;
};

class PushStream final : public grpc::ClientBidiReactor<pb::PutRequest, pb::PutResponse>,
                         public ClientStream<PushStream, PushRequest> {
 public:
  PushStream(Shared& shared, PushRequest request, OnRange on_range, transfer::OnDone on_done)
      : ClientStream(shared, std::move(request), request.source.size(), std::move(on_range),
                     std::move(on_done)) {}

  void Begin(std::unique_ptr<pb::TransferService::Stub> stub) {
    stub_ = std::move(stub);
    if (!Register()) return Report({.status = Cancelled(), .transport = shared_.name});
    stub_->async()->Put(&context_, this);
    MutexLock lock(mutex_);
    message_.mutable_open()->set_ticket(request_.ticket);
    writing_ = true;
    StartRead(&response_);
    StartWrite(&message_);
    StartCall();
  }

  // Writes are started from reactions only, while the read is open: then gRPC cannot be done
  // meanwhile.
  void OnWriteDone(bool ok) override {
    MutexLock lock(mutex_);
    writing_ = false;
    if (ok) Pump();
  }
  void OnReadDone(bool ok) override {
    if (!ok) return;
    Range accepted;
    std::vector<Checksum> pieces;
    {
      MutexLock lock(mutex_);
      if (absl::Status taken = Take(accepted, pieces); !taken.ok()) StopLocked(std::move(taken));
    }
    if (accepted.length > 0 && on_range_) on_range_(accepted, pieces);
    MutexLock lock(mutex_);
    Pump();
    StartRead(&response_);
  }
  void OnDone(const grpc::Status& status) override { HandleDone(status); }

 private:
  absl::Status Take(Range& accepted, std::vector<Checksum>& pieces) LORRY_REQUIRES(mutex_) {
    if (response_.has_opened()) {
      if (response_.opened().image_bytes() != request_.source.size()) {
        return absl::InvalidArgumentError(
            absl::StrCat("the upload has ", response_.opened().image_bytes(), " bytes, its source ",
                         request_.source.size()));
      }
      opened_ = true;
      plan_.OnProgress(clock_.Now());
      return absl::OkStatus();
    }
    const Range range{response_.accepted().offset(), response_.accepted().length()};
    const auto found = unanswered_.find(range);
    if (found == unanswered_.end()) return ProtocolViolation("an answer to nothing");
    accepted = range;
    pieces.push_back(found->second);
    unanswered_.erase(found);
    plan_.OnArrived(range, clock_.Now());
    shared_.counters.bytes_sent += range.length;
    return absl::OkStatus();
  }

  void Pump() LORRY_REQUIRES(mutex_) {
    if (writing_ || !opened_ || !stopped_.ok() || half_closed_) return;
    Range range;
    if (plan_.Next(range)) {
      const Checksum sum = PieceChecksums(range, request_.source, request_.leaves)[0];
      unanswered_[range] = sum;
      FillChunk(*message_.mutable_chunk(), range, request_.source.data() + range.offset, sum);
      writing_ = true;
      StartWrite(&message_);
    } else if (plan_.complete()) {
      half_closed_ = true;
      StartWritesDone();
    }
  }

  std::unique_ptr<pb::TransferService::Stub> stub_;
  pb::PutRequest message_;
  pb::PutResponse response_;
  std::map<Range, Checksum> unanswered_ LORRY_GUARDED_BY(mutex_);
  bool opened_ LORRY_GUARDED_BY(mutex_) = false;
  bool writing_ LORRY_GUARDED_BY(mutex_) = false;
  bool half_closed_ LORRY_GUARDED_BY(mutex_) = false;
};

class NotStarted final : public Transfer {
 public:
  void Cancel() override {}
};

class GrpcTransport final : public Transport {
 public:
  GrpcTransport(std::shared_ptr<Channels> channels, std::string name)
      : channels_(std::move(channels)), shared_{.name = std::move(name)} {}
  ~GrpcTransport() override { shared_.streams.CloseAndWait(); }

  std::string_view name() const override { return shared_.name; }
  std::string_view scheme() const override { return shared_.name; }
  std::shared_ptr<Transfer> Fetch(FetchRequest request, OnRange on_range, OnDone on_done) override {
    return Begin<FetchStream>(request.destination.size(), std::move(request), std::move(on_range),
                              std::move(on_done));
  }
  std::shared_ptr<Transfer> Push(PushRequest request, OnRange on_range, OnDone on_done) override {
    return Begin<PushStream>(request.source.size(), std::move(request), std::move(on_range),
                             std::move(on_done));
  }
  TransportStats stats() const override { return shared_.counters.Snapshot(); }

 private:
  template <typename Stream, typename Request>
  std::shared_ptr<Transfer> Begin(uint64_t image_bytes, Request request, OnRange on_range,
                                  OnDone on_done) {
    absl::Status sane = CheckRequest(request.options, request.ranges, request.leaves, image_bytes);
    if (sane.ok() && SchemeOf(request.address) != scheme()) {
      sane = absl::InvalidArgumentError(
          absl::StrCat(request.address, " is not of the form ", shared_.name, "://host:port"));
    }
    std::shared_ptr<grpc::Channel> channel;
    if (sane.ok()) {
      channel = channels_->To(std::string(HostPortOf(request.address)));
      if (channel == nullptr) sane = ConnectionLost("no channel to it can be made");
    }
    if (!sane.ok()) {
      // From another thread, as the seam promises.
      tasks_.PostAnswer([this, on_done = std::move(on_done), sane] {
        on_done({.status = sane, .transport = shared_.name});
      });
      return std::make_shared<NotStarted>();
    }
    auto stub = pb::TransferService::NewStub(channel);
    auto stream = std::make_shared<Stream>(shared_, std::move(request), std::move(on_range),
                                           std::move(on_done));
    stream->Begin(std::move(stub));
    return stream;
  }

  const std::shared_ptr<Channels> channels_;
  Shared shared_;
  runtime::Loop tasks_{"transfer-grpc"};
};

}  // namespace

std::unique_ptr<Transport> CreateGrpcTransport(std::shared_ptr<Channels> channels,
                                               std::string name) {
  if (channels == nullptr) channels = std::make_shared<Channels>();
  return std::make_unique<GrpcTransport>(std::move(channels), std::move(name));
}

}  // namespace lorry::transfer
