// The dialling side: one endpoint for a transfer, ranges asked for or announced up to `in_flight`
// at a time.
#include <atomic>
#include <charconv>
#include <cstring>
#include <map>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/check.h"
#include "lib/base/error.h"
#include "lib/base/strings.h"
#include "lib/transfer/session.h"
#include "lib/transfer/task_thread.h"
#include "lib/transfer/ucx/ucx_transport.h"
#include "lib/transfer/ucx/wire.h"
#include "lib/transfer/ucx/worker.h"

namespace lorry::transfer {
namespace {

using ucx::Endpoint;
using ucx::Incoming;
using ucx::Kind;
using ucx::Message;
using ucx::Worker;

class UcxClient;

// How long a finished transfer waits for its last words to leave before it closes without them.
constexpr Tick kFlushMs = 500;

// A Fetch or Push in one shape.
struct Job {
  Direction direction;
  std::string address;
  std::string ticket;
  std::vector<Range> ranges;
  std::span<std::byte> destination;
  std::span<const std::byte> source;
  std::vector<Checksum> leaves;
  TransferOptions options;
  OnRange on_range;
  OnDone on_done;
  uint64_t image_bytes() const {
    return direction == Direction::kGet ? destination.size() : source.size();
  }
};

// One transfer. Everything but Cancel runs on the worker's thread. Ends in three steps: a status is
// found (`End`); hashing is over and the endpoint closed, which is when UCX has let go of the
// memory; OnDone is called.
class UcxTransfer final : public Transfer, public std::enable_shared_from_this<UcxTransfer> {
 public:
  UcxTransfer(UcxClient& client, uint64_t session, Job job)
      : client_(client), session_(session), job_(std::move(job)) {}

  void Cancel() override;
  void Start();
  void HandleTick(Tick now);
  bool HandleMessage(const Incoming& incoming, const Message& message);
  void End(absl::Status status);
  ucp_ep_h handle() const { return endpoint_ == nullptr ? nullptr : endpoint_->handle(); }

 private:
  void SendMessage(const Message& message, std::span<const std::byte> payload = {});
  void Pump();
  void Offer(uint32_t request, std::vector<Checksum> pieces);
  bool HandleData(const Incoming& incoming, const Message& message);
  void Verify(uint32_t request, const Range& range, std::vector<Checksum> pieces);
  void HandleRangeDone(uint32_t request, std::vector<Checksum> pieces);
  void Close();
  void HandleClosed();
  void ReportIfQuiet();

  // A range that was asked for or offered.
  struct Pending {
    Range range;
    bool arriving = false;         // fetch: its bytes are being received or verified
    std::vector<Checksum> pieces;  // push: what was sent with it
  };

  UcxClient& client_;
  const uint64_t session_;
  Job job_;
  std::unique_ptr<Plan> plan_;
  Endpoint* endpoint_ = nullptr;
  std::unordered_map<uint32_t, Pending> pending_;
  uint32_t next_request_ = 1;
  int hashing_ = 0;
  enum class Phase { kOpening, kMoving, kEnding, kClosing, kClosed } phase_ = Phase::kOpening;
  Tick ending_since_ = 0;
  absl::Status status_;
};

class UcxClient final : public Transport {
 public:
  absl::Status Init();
  ~UcxClient() override;

  std::string_view scheme() const override { return "ucx"; }
  std::shared_ptr<Transfer> Fetch(FetchRequest request, OnRange on_range, OnDone on_done) override {
    return Begin({.direction = Direction::kGet,
                  .address = std::move(request.address),
                  .ticket = std::move(request.ticket),
                  .ranges = std::move(request.ranges),
                  .destination = request.destination,
                  .leaves = std::move(request.leaves),
                  .options = request.options,
                  .on_range = std::move(on_range),
                  .on_done = std::move(on_done)});
  }
  std::shared_ptr<Transfer> Push(PushRequest request, OnRange on_range, OnDone on_done) override {
    return Begin({.direction = Direction::kPut,
                  .address = std::move(request.address),
                  .ticket = std::move(request.ticket),
                  .ranges = std::move(request.ranges),
                  .source = request.source,
                  .leaves = std::move(request.leaves),
                  .options = request.options,
                  .on_range = std::move(on_range),
                  .on_done = std::move(on_done)});
  }
  TransportStats stats() const override { return counters_.Snapshot(); }

  Worker& worker() { return *worker_; }
  TaskThread& hasher() { return *hasher_; }
  Counters& counters() { return counters_; }
  void Forget(uint64_t session) LORRY_EXCLUDES(mutex_);

 private:
  std::shared_ptr<Transfer> Begin(Job job);
  bool HandleMessage(const Incoming& incoming);
  void HandleTick(Tick now);

  Counters counters_;
  std::atomic<uint64_t> next_session_{1};
  // Worker's thread.
  std::unordered_map<uint64_t, std::shared_ptr<UcxTransfer>> transfers_;
  bool stopping_ = false;

  Mutex mutex_;
  CondVar ended_;
  int live_ LORRY_GUARDED_BY(mutex_) = 0;  // transfers whose OnDone is still to come
  std::unique_ptr<Worker> worker_;
  std::unique_ptr<TaskThread> hasher_;
};

absl::Status FromUcx(ucs_status_t status) {
  if (status == UCS_ERR_REJECTED) {
    return Error(absl::StatusCode::kResourceExhausted, "TOO_MANY_SESSIONS",
                 "the server has as many connections as it takes; try again soon");
  }
  return ConnectionLost(ucs_status_string(status));
}

bool ParseHostPort(std::string_view text, std::string& host, int& port) {
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return false;
  std::string_view name = text.substr(0, colon);
  if (name.size() > 2 && name.front() == '[' && name.back() == ']')
    name = name.substr(1, name.size() - 2);
  const std::string_view digits = text.substr(colon + 1);
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  host = std::string(name);
  return error == std::errc() && end == digits.data() + digits.size() && port > 0 && port < 65536;
}

void UcxTransfer::Cancel() {
  client_.worker().Post([weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->End(Cancelled());
  });
}

void UcxTransfer::Start() {
  Worker& worker = client_.worker();
  ++client_.counters().sessions_opened;
  ++client_.counters().sessions_open;
  plan_ = std::make_unique<Plan>(TransferOptions{}, std::vector<Range>{}, 0, worker.Now());
  absl::Status sane = CheckRequest(job_.options, job_.ranges, job_.leaves, job_.image_bytes());
  std::string host;
  int port = 0;
  if (sane.ok() &&
      (SchemeOf(job_.address) != "ucx" || !ParseHostPort(HostPortOf(job_.address), host, port))) {
    sane = absl::InvalidArgumentError(
        absl::StrCat(job_.address, " is not of the form ucx://host:port"));
  }
  if (sane.ok() && job_.ticket.size() > kTicketBytesMax)
    sane = absl::InvalidArgumentError("the ticket is too long");
  if (!sane.ok()) return End(std::move(sane));
  plan_ = std::make_unique<Plan>(job_.options, job_.ranges, job_.image_bytes(), worker.Now());
  auto endpoint = worker.Connect(host, port, [this](ucs_status_t status) { End(FromUcx(status)); });
  if (!endpoint.ok()) return End(endpoint.status());
  endpoint_ = *endpoint;
  SendMessage({.kind = Kind::kOpen, .direction = job_.direction, .ticket = job_.ticket});
}

void UcxTransfer::SendMessage(const Message& message, std::span<const std::byte> payload) {
  Message stamped = message;
  stamped.session = session_;
  // A send that fails means a lost endpoint; closing it is what ends the others. The payload is the
  // request's source, which stays until OnDone, and OnDone waits for the endpoint.
  endpoint_->Send(ucx::Encode(stamped), payload, [self = shared_from_this()](ucs_status_t status) {
    // CANCELED: the server refused an announced range; its kDone says why.
    if (status != UCS_OK && status != UCS_ERR_CANCELED) self->End(FromUcx(status));
  });
}

void UcxTransfer::HandleTick(Tick now) {
  if (phase_ >= Phase::kEnding) {
    // A flush towards a peer that has stopped does not end by itself.
    if (phase_ == Phase::kEnding && now - ending_since_ >= kFlushMs) Close();
    return;
  }
  if (absl::Status late = plan_->CheckDeadlines(now); !late.ok()) End(std::move(late));
}

void UcxTransfer::End(absl::Status status) {
  if (phase_ >= Phase::kEnding) return;
  phase_ = Phase::kEnding;
  ending_since_ = client_.worker().Now();
  status_ = std::move(status);
  if (!status_.ok()) ++client_.counters().sessions_failed;
  if (status_.ok()) {
    endpoint_->Flush([self = shared_from_this()](ucs_status_t) { self->Close(); });
  } else {
    Close();
  }
}

void UcxTransfer::Close() {
  if (phase_ >= Phase::kClosing) return;
  phase_ = Phase::kClosing;
  // Not from inside of a message handler of UCX.
  client_.worker().Defer([self = shared_from_this()] {
    if (self->endpoint_ == nullptr) return self->HandleClosed();
    self->endpoint_->Close([self] { self->HandleClosed(); });
  });
}

void UcxTransfer::HandleClosed() {
  phase_ = Phase::kClosed;
  endpoint_ = nullptr;
  ReportIfQuiet();
}

void UcxTransfer::ReportIfQuiet() {
  if (phase_ != Phase::kClosed || hashing_ > 0) return;
  --client_.counters().sessions_open;
  job_.on_done(
      {.status = status_, .done = plan_->done(), .bytes = plan_->bytes(), .transport = "ucx"});
  client_.Forget(session_);
}

bool UcxTransfer::HandleMessage(const Incoming& incoming, const Message& message) {
  if (phase_ >= Phase::kEnding || incoming.endpoint != handle()) return false;
  switch (message.kind) {
    case Kind::kOpened:
      if (phase_ != Phase::kOpening) break;
      if (message.image_bytes != job_.image_bytes()) {
        End(absl::InvalidArgumentError(absl::StrCat("the image has ", message.image_bytes,
                                                    " bytes, the memory for it ",
                                                    job_.image_bytes())));
        return false;
      }
      phase_ = Phase::kMoving;
      plan_->OnProgress(client_.worker().Now());
      Pump();
      return false;
    case Kind::kData:
      if (phase_ == Phase::kMoving && job_.direction == Direction::kGet)
        return HandleData(incoming, message);
      break;
    case Kind::kDone: {
      if (!message.status.ok()) {
        End(message.status);
        return false;
      }
      const auto found = pending_.find(message.request);
      if (found == pending_.end() || job_.direction != Direction::kPut) break;
      client_.counters().bytes_sent += found->second.range.length;
      HandleRangeDone(message.request, found->second.pieces);
      return false;
    }
    case Kind::kOpen:
    case Kind::kGet:
    case Kind::kPut:
      break;
  }
  End(ProtocolViolation("an unexpected message"));
  return false;
}

void UcxTransfer::Pump() {
  if (phase_ != Phase::kMoving) return;
  for (Range range; plan_->Next(range);) {
    const uint32_t request = next_request_++;
    pending_[request].range = range;
    if (job_.direction == Direction::kGet) {
      SendMessage({.kind = Kind::kGet, .request = request, .range = range});
    } else if (!job_.leaves.empty()) {
      Offer(request, PieceChecksums(range, job_.source, job_.leaves));
    } else {
      ++hashing_;
      client_.hasher().Post([self = shared_from_this(), request, range] {
        auto pieces = PieceChecksums(range, self->job_.source, {});
        self->client_.worker().Post([self, request, pieces = std::move(pieces)]() mutable {
          --self->hashing_;
          self->Offer(request, std::move(pieces));
          self->ReportIfQuiet();
        });
      });
    }
  }
  if (plan_->complete()) End(absl::OkStatus());
}

void UcxTransfer::Offer(uint32_t request, std::vector<Checksum> pieces) {
  if (phase_ != Phase::kMoving) return;
  Pending& pending = pending_.at(request);
  pending.pieces = std::move(pieces);
  SendMessage(
      {.kind = Kind::kPut, .request = request, .range = pending.range, .pieces = pending.pieces},
      job_.source.subspan(pending.range.offset, pending.range.length));
}

bool UcxTransfer::HandleData(const Incoming& incoming, const Message& message) {
  const auto found = pending_.find(message.request);
  if (found == pending_.end() || found->second.arriving || found->second.range != message.range ||
      incoming.length != message.range.length) {
    End(ProtocolViolation("bytes that were not asked for"));
    return false;
  }
  found->second.arriving = true;
  const auto destination = job_.destination.subspan(message.range.offset, message.range.length);
  if (incoming.announced == nullptr) {
    std::memcpy(destination.data(), incoming.eager.data(), destination.size());
    Verify(message.request, message.range, message.pieces);
    return false;
  }
  endpoint_->Receive(incoming.announced, destination,
                     [self = shared_from_this(), message](ucs_status_t status) {
                       if (status != UCS_OK) return self->End(FromUcx(status));
                       if (self->phase_ == Phase::kMoving) {
                         self->Verify(message.request, message.range, message.pieces);
                       }
                     });
  return true;
}

void UcxTransfer::Verify(uint32_t request, const Range& range, std::vector<Checksum> pieces) {
  ++hashing_;
  client_.hasher().Post(
      [self = shared_from_this(), request, range, pieces = std::move(pieces)]() mutable {
        absl::Status verified =
            VerifyRange(range, self->job_.destination.subspan(range.offset, range.length), pieces,
                        self->job_.leaves, self->job_.image_bytes());
        self->client_.worker().Post([self, request, verified, pieces = std::move(pieces)] {
          --self->hashing_;
          if (self->phase_ != Phase::kMoving) return self->ReportIfQuiet();
          if (!verified.ok()) return self->End(verified);
          self->client_.counters().bytes_received += self->pending_.at(request).range.length;
          self->HandleRangeDone(request, pieces);
        });
      });
}

void UcxTransfer::HandleRangeDone(uint32_t request, std::vector<Checksum> pieces) {
  const Range range = pending_.at(request).range;
  pending_.erase(request);
  plan_->OnArrived(range, client_.worker().Now());
  if (job_.on_range) job_.on_range(range, pieces);
  Pump();
}

absl::Status UcxClient::Init() {
  hasher_ = std::make_unique<TaskThread>();
  auto worker =
      Worker::Start({.on_message = [this](const Incoming& in) { return HandleMessage(in); },
                     .on_tick = [this](Tick now) { HandleTick(now); }});
  if (!worker.ok()) return worker.status();
  worker_ = *std::move(worker);
  return absl::OkStatus();
}

UcxClient::~UcxClient() {
  if (worker_ != nullptr) {
    worker_->PostAndWait([this] {
      stopping_ = true;
      for (const auto& [session, transfer] : std::map(transfers_.begin(), transfers_.end())) {
        transfer->End(Cancelled());
      }
    });
    MutexLock lock(mutex_);
    while (live_ > 0) ended_.wait(mutex_);
  }
  hasher_.reset();
  worker_.reset();
}

std::shared_ptr<Transfer> UcxClient::Begin(Job job) {
  const uint64_t session = next_session_++;
  auto transfer = std::make_shared<UcxTransfer>(*this, session, std::move(job));
  {
    MutexLock lock(mutex_);
    ++live_;
  }
  worker_->Post([this, session, transfer] {
    transfers_[session] = transfer;
    transfer->Start();
    if (stopping_) transfer->End(Cancelled());
  });
  return transfer;
}

void UcxClient::Forget(uint64_t session) {
  transfers_.erase(session);
  MutexLock lock(mutex_);
  --live_;
  ended_.notify_all();  // under the lock: the destructor may run as soon as it is let go
}

bool UcxClient::HandleMessage(const Incoming& incoming) {
  const auto message = ucx::Decode(incoming.header);
  if (!message.ok()) return false;  // idle deadlines end what waits for a sane answer
  const auto found = transfers_.find(message->session);
  return found != transfers_.end() &&
         std::shared_ptr(found->second)->HandleMessage(incoming, *message);
}

void UcxClient::HandleTick(Tick now) {
  std::vector<std::shared_ptr<UcxTransfer>> transfers;  // HandleTick may end and forget them
  for (const auto& [session, transfer] : transfers_) transfers.push_back(transfer);
  for (const auto& transfer : transfers) transfer->HandleTick(now);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> CreateUcxTransport() {
  auto client = std::make_unique<UcxClient>();
  LORRY_RETURN_IF_ERROR(client->Init());
  return client;
}

std::string UcxVersion() { return absl::StrCat("UCX ", ucp_get_version_string()); }

}  // namespace lorry::transfer
