// One transfer of the dialling side.
#include <cstring>

#include "absl/strings/str_cat.h"
#include "lib/base/error.h"
#include "lib/transfer/ucx/client.h"
#include "lib/transfer/ucx/host_proof.h"

namespace lorry::transfer::ucx {
namespace {

// How long a finished transfer waits for its last messages to leave, and one whose endpoint broke
// for the stream to say why, before it closes without.
constexpr Tick kLastWordMs = 500;

// What says that this transport does not reach the server, and so that another one should be tried.
absl::Status Unreachable(const absl::Status& why) {
  if (absl::IsUnimplemented(why)) {
    return absl::UnavailableError("the server carries nothing by UCX");
  }
  if (ReasonOf(why) == "LANE_UNAVAILABLE") return absl::UnavailableError(why.message());
  return why;
}

}  // namespace

void UcxTransfer::Cancel() {
  client_.loop().Post([self = shared_from_this()] { self->End(Cancelled()); });
}

void UcxTransfer::Start() {
  ++client_.counters().sessions_opened;
  ++client_.counters().sessions_open;
  plan_ = std::make_unique<Plan>(TransferOptions{}, std::vector<Range>{}, 0, client_.loop().Now());
  if (absl::Status dialled = Dial(); !dialled.ok()) End(std::move(dialled));
}

absl::Status UcxTransfer::Dial() {
  LORRY_RETURN_IF_ERROR(CheckRequest(job_.options, job_.ranges, job_.leaves, job_.image_bytes()));
  if (SchemeOf(job_.address) != client_.scheme()) {
    return absl::InvalidArgumentError(
        absl::StrCat(job_.address, " is not of the form grpc://host:port"));
  }
  if (job_.ticket.size() > kTicketBytesMax) {
    return absl::InvalidArgumentError("the ticket is too long");
  }
  plan_ =
      std::make_unique<Plan>(job_.options, job_.ranges, job_.image_bytes(), client_.loop().Now());
  const auto channel = client_.channels().To(std::string(HostPortOf(job_.address)));
  if (channel == nullptr) return ConnectionLost("no channel to it can be made");
  pb::AttachRequest request;
  pb::AttachRequest::Open& open = *request.mutable_open();
  handshake_.client_nonce = FreshNonce();
  open.set_ticket(job_.ticket);
  open.set_nonce(handshake_.client_nonce);
  open.set_lanes(client_.lane() == UcxLane::kSharedMemory ? pb::LANES_SHARED_MEMORY
                                                          : pb::LANES_NETWORK);
  open.set_ucx_version(UcxVersion());
  open.set_put(job_.direction == Direction::kPut);
  // The client stays until the transfer is forgotten, which the stream's end comes before.
  call_ = AttachCall::Start(
      channel, job_.options.deadline_ms,
      {.on_response =
           [self = shared_from_this()](pb::AttachResponse response) {
             self->client_.loop().Post(
                 [self, response = std::move(response)] { self->HandleResponse(response); });
           },
       .on_done =
           [self = shared_from_this()](absl::Status status) {
             self->client_.loop().Post([self, status] { self->HandleStreamDone(status); });
           }});
  call_->Send(std::move(request));
  return absl::OkStatus();
}

void UcxTransfer::HandleResponse(const pb::AttachResponse& response) {
  if (phase_ >= Phase::kEnding) return;
  plan_->OnProgress(client_.loop().Now());
  absl::Status status = ProtocolViolation("an unexpected answer");
  if (phase_ == Phase::kDialling && response.has_challenge()) {
    status = HandleChallenge(response.challenge());
  } else if (phase_ == Phase::kAttaching && response.has_attached()) {
    status = HandleAttached(response.attached());
  }
  if (!status.ok()) End(Unreachable(status));
}

absl::Status UcxTransfer::HandleChallenge(const pb::AttachResponse::Challenge& challenge) {
  phase_ = Phase::kAttaching;
  handshake_.server_nonce = challenge.nonce();
  handshake_.secret = job_.ticket;
  if (client_.lane() == UcxLane::kSharedMemory) {
    LORRY_ASSIGN_OR_RETURN(handshake_.secret, ReadHostSecret(challenge.pid(), challenge.fd()));
  }
  LORRY_ASSIGN_OR_RETURN(
      endpoint_,
      client_.loop().Open(client_.lane(),
                          {.on_message = [this](const Incoming& in) { return HandleMessage(in); },
                           .on_error = [this](ucs_status_t status) { HandleLost(status); }}));
  pb::AttachRequest request;
  *request.mutable_address() = handshake_.Signed(kClientSide, endpoint_->address());
  call_->Send(std::move(request));
  return absl::OkStatus();
}

absl::Status UcxTransfer::HandleAttached(const pb::AttachResponse::Attached& attached) {
  LORRY_RETURN_IF_ERROR(handshake_.Check(kServerSide, attached.address()));
  if (attached.image_bytes() != job_.image_bytes()) {
    return absl::InvalidArgumentError(absl::StrCat("the image has ", attached.image_bytes(),
                                                   " bytes, the memory for it ",
                                                   job_.image_bytes()));
  }
  LORRY_RETURN_IF_ERROR(endpoint_->Connect(attached.address().address()));
  phase_ = Phase::kMoving;
  Pump();
  return absl::OkStatus();
}

// The server ended the session, or nothing but its end can be learned any more.
void UcxTransfer::HandleStreamDone(absl::Status status) {
  call_ = nullptr;
  if (phase_ >= Phase::kEnding) return ForgetIfEnded();
  if (status.ok()) status = ConnectionLost("the server ended the session early");
  End(Unreachable(status));
}

// The stream is about to say why; if it does not, this is all that is known.
void UcxTransfer::HandleLost(ucs_status_t status) {
  if (phase_ >= Phase::kEnding || !lost_.ok()) return;
  lost_ = ConnectionLost(ucs_status_string(status));
  ending_since_ = client_.loop().Now();
}

void UcxTransfer::SendMessage(const Message& message, std::span<const std::byte> payload) {
  // A send that fails means a lost endpoint; closing it is what ends the others. The payload is the
  // request's source, which stays until OnDone, and OnDone waits for the endpoint.
  endpoint_->Send(Encode(message), payload, [self = shared_from_this()](ucs_status_t status) {
    if (status != UCS_OK) self->HandleLost(status);
  });
}

void UcxTransfer::HandleTick(Tick now) {
  if (phase_ >= Phase::kEnding) {
    // Towards a peer that has stopped neither a flush nor a stream ends by itself.
    if (now - ending_since_ < kLastWordMs) return;
    if (phase_ == Phase::kEnding) Close();
    if (call_ != nullptr) call_->Cancel();
    return;
  }
  if (!lost_.ok() && now - ending_since_ >= kLastWordMs) return End(lost_);
  if (absl::Status late = plan_->CheckDeadlines(now); !late.ok()) End(std::move(late));
}

void UcxTransfer::End(absl::Status status) {
  if (phase_ >= Phase::kEnding) return;
  phase_ = Phase::kEnding;
  ending_since_ = client_.loop().Now();
  status_ = std::move(status);
  if (!status_.ok()) return Close();
  endpoint_->Flush([self = shared_from_this()](ucs_status_t) { self->Close(); });
}

void UcxTransfer::Close() {
  if (phase_ >= Phase::kClosing) return;
  phase_ = Phase::kClosing;
  if (call_ != nullptr && status_.ok()) call_->Finish();
  if (call_ != nullptr && !status_.ok()) call_->Cancel();
  // Not from inside of a message handler of UCX.
  client_.loop().Defer([self = shared_from_this()] {
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
  if (phase_ != Phase::kClosed || hashing_ > 0 || reported_) return;
  --client_.counters().sessions_open;
  job_.on_done({.status = status_,
                .done = plan_->done(),
                .bytes = plan_->bytes(),
                .transport = std::string(client_.name())});
  reported_ = true;
  ForgetIfEnded();
}

void UcxTransfer::ForgetIfEnded() {
  if (reported_ && call_ == nullptr) client_.Forget(shared_from_this());
}

bool UcxTransfer::HandleMessage(const Incoming& incoming) {
  if (phase_ != Phase::kMoving) return false;
  const auto message = Decode(incoming.header);
  if (!message.ok()) {
    End(message.status());
    return false;
  }
  if (message->kind == Kind::kData && job_.direction == Direction::kGet) {
    return HandleData(incoming, *message);
  }
  const auto found = pending_.find(message->request);
  // Its checksums are there once a range was offered: before, nobody can have received it.
  if (message->kind == Kind::kDone && job_.direction == Direction::kPut &&
      found != pending_.end() && !found->second.pieces.empty()) {
    client_.counters().bytes_sent += found->second.range.length;
    HandleRangeDone(message->request, found->second.pieces);
    return false;
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
      client_.hasher().PostAnswer([self = shared_from_this(), request, range] {
        auto pieces = PieceChecksums(range, self->job_.source, {});
        self->client_.loop().Post([self, request, pieces = std::move(pieces)]() mutable {
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
                       if (status != UCS_OK) return self->HandleLost(status);
                       if (self->phase_ == Phase::kMoving) {
                         self->Verify(message.request, message.range, message.pieces);
                       }
                     });
  return true;
}

void UcxTransfer::Verify(uint32_t request, const Range& range, std::vector<Checksum> pieces) {
  ++hashing_;
  client_.hasher().PostAnswer(
      [self = shared_from_this(), request, range, pieces = std::move(pieces)]() mutable {
        absl::Status verified =
            VerifyRange(range, self->job_.destination.subspan(range.offset, range.length), pieces,
                        self->job_.leaves, self->job_.image_bytes());
        self->client_.loop().Post([self, request, verified, pieces = std::move(pieces)] {
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
  plan_->OnArrived(range, client_.loop().Now());
  if (job_.on_range) job_.on_range(range, pieces);
  Pump();
}

}  // namespace lorry::transfer::ucx
