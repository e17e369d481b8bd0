// One session of the serving side.
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/check.h"
#include "lib/base/error.h"
#include "lib/base/strings.h"
#include "lib/transfer/ucx/service.h"

namespace lorry::transfer::ucx {
namespace {

// A peer knows that a range has arrived before this side is told that it was sent, and asks for the
// next: what it asks for may be windows ahead of what is counted here, where this side's thread has
// to wait for a core. What is asked for takes some hundred bytes each until it is sent.
constexpr int kAskedMax = 16 * kInFlightMax;

// How long a session whose client is done waits for its own last messages to leave.
constexpr Tick kLastWordMs = 500;
// Bytes of ranges that wait here for their turn, because UCX sent them at once. It does so below
// some 8 KiB by shared memory and TCP, below some 64 KiB by RDMA: sixteen of these fit.
constexpr size_t kEagerBytesMax = size_t{1} << 20;

absl::Status Lost(ucs_status_t status) { return ConnectionLost(ucs_status_string(status)); }

// Whether the peer has gone, which UCX tells as a connection that broke; or uses gRPC, since it
// cannot use UCX with this side.
bool HasLeft(const absl::Status& why) {
  const std::string reason = ReasonOf(why);
  return reason == "LANE_UNAVAILABLE" || (absl::IsUnavailable(why) && reason.empty());
}

}  // namespace

Counters& Session::counters() { return service_.counters(lane_); }

void Session::HandleRequest(const pb::AttachRequest& request) {
  if (phase_ >= Phase::kLeaving) return;
  absl::Status status = ProtocolViolation("an unexpected request");
  if (phase_ == Phase::kConnected && request.has_open()) status = HandleOpen(request.open());
  if (phase_ == Phase::kChallenged && request.has_address()) {
    status = HandleAddress(request.address());
  }
  if (!status.ok()) Fail(std::move(status));
}

// The ticket first: nothing is made for a peer that has none.
absl::Status Session::HandleOpen(const pb::AttachRequest::Open& open) {
  const bool shared = open.lanes() == pb::LANES_SHARED_MEMORY;
  lane_ = shared ? UcxLane::kSharedMemory : UcxLane::kNetwork;
  LORRY_ASSIGN_OR_RETURN(
      claims_, Admit(service_.keys(), open.ticket(), open.put() ? Direction::kPut : Direction::kGet,
                     service_.CallerOf(*stream_)));
  if (service_.admitted() >= service_.limits().sessions_max) {
    return TooManySessions(service_.limits().sessions_max);
  }
  admitted_ = true;
  ++service_.admitted();
  place_.Leave();
  ++counters().sessions_opened;
  ++counters().sessions_open;
  LORRY_RETURN_IF_ERROR(CheckSameUcx(open.ucx_version()));
  if (!service_.loop().Has(lane_) || open.nonce().size() != kNonceBytes) {
    return Error(absl::StatusCode::kFailedPrecondition, "LANE_UNAVAILABLE",
                 absl::StrCat("this server does not serve ", ToAbsl(NameOf(lane_)), "; use gRPC"));
  }
  phase_ = Phase::kChallenged;
  progressed_at_ = service_.loop().Now();
  handshake_ = {.client_nonce = open.nonce(), .server_nonce = FreshNonce()};
  pb::AttachResponse response;
  pb::AttachResponse::Challenge& challenge = *response.mutable_challenge();
  challenge.set_nonce(handshake_.server_nonce);
  if (shared) {
    handshake_.secret = service_.secret().text();
    challenge.set_pid(service_.secret().pid());
    challenge.set_fd(service_.secret().fd());
  } else {
    handshake_.secret = open.ticket();
  }
  stream_->Send(std::move(response));
  return absl::OkStatus();
}

absl::Status Session::HandleAddress(const pb::UcxAddress& address) {
  LORRY_RETURN_IF_ERROR(handshake_.Check(kClientSide, address));
  phase_ = Phase::kOpening;
  progressed_at_ = service_.loop().Now();
  LORRY_ASSIGN_OR_RETURN(
      endpoint_, service_.loop().Open(
                     lane_, {.on_message = [this](const Incoming& in) { return HandleMessage(in); },
                             .on_error = [this](ucs_status_t status) { Fail(Lost(status)); }}));
  LORRY_RETURN_IF_ERROR(endpoint_->Connect(address.address()));
  // The answer may come on any thread, and after the session or the service has gone.
  const auto answer = [mailbox = service_.mailbox(), weak = weak_from_this()](auto opened) {
    mailbox->Post([weak, opened = std::move(opened)](UcxService&) mutable {
      if (const auto self = weak.lock()) self->HandleOpened(std::move(opened));
    });
  };
  if (claims_.direction == Direction::kGet) {
    service_.handler().OpenGet(claims_, answer);
  } else {
    service_.handler().OpenPut(claims_, answer);
  }
  return absl::OkStatus();
}

void Session::HandleOpened(absl::StatusOr<GetSource> source) {
  if (phase_ != Phase::kOpening) return;
  if (!source.ok()) return Fail(source.status());
  if (source->arrivals != nullptr) return Fail(StillComing());
  LORRY_CHECK(source->leaves.empty() || source->leaves.size() == LeafCount(source->bytes.size()));
  source_ = *std::move(source);
  Opened(source_.bytes.size());
}

void Session::HandleOpened(absl::StatusOr<std::shared_ptr<PutTarget>> target) {
  if (phase_ != Phase::kOpening) return;
  if (!target.ok()) return Fail(target.status());
  target_ = *std::move(target);
  Opened(target_->image_bytes());
}

void Session::Opened(uint64_t image_bytes) {
  phase_ = Phase::kOpen;
  progressed_at_ = service_.loop().Now();
  pb::AttachResponse response;
  pb::AttachResponse::Attached& attached = *response.mutable_attached();
  *attached.mutable_address() = handshake_.Signed(kServerSide, endpoint_->address());
  attached.set_image_bytes(image_bytes);
  stream_->Send(std::move(response));
}

bool Session::HandleMessage(const Incoming& incoming) {
  if (phase_ != Phase::kOpen) return false;
  const auto message = Decode(incoming.header);
  if (!message.ok()) {
    Fail(message.status());
    return false;
  }
  if (message->kind == Kind::kGet && target_ == nullptr) {
    HandleGet(*message);
    return false;
  }
  if (message->kind == Kind::kPut && target_ != nullptr) return HandlePut(incoming, *message);
  Fail(ProtocolViolation("an unexpected message"));
  return false;
}

void Session::HandleGet(const Message& message) {
  if (++sending_ > kAskedMax) return Fail(ProtocolViolation("too many ranges in flight"));
  absl::Status allowed = CheckAllowed(claims_, message.range);
  if (allowed.ok()) allowed = CheckRange(message.range, source_.bytes.size());
  if (!allowed.ok()) return Fail(std::move(allowed));
  if (!source_.leaves.empty())
    return SendRange(message, PieceChecksums(message.range, source_.bytes, source_.leaves));
  ++hashing_;
  service_.hasher().PostAnswer([self = shared_from_this(), message] {
    auto pieces = PieceChecksums(message.range, self->source_.bytes, {});
    self->service_.loop().Post([self, message, pieces = std::move(pieces)]() mutable {
      --self->hashing_;
      if (self->phase_ == Phase::kOpen) self->SendRange(message, std::move(pieces));
      self->ForgetIfQuiet();
    });
  });
}

void Session::SendRange(const Message& request, std::vector<Checksum> pieces) {
  const Range range = request.range;
  endpoint_->Send(Encode({.kind = Kind::kData,
                          .request = request.request,
                          .range = range,
                          .pieces = std::move(pieces)}),
                  source_.bytes.subspan(range.offset, range.length),
                  [self = shared_from_this(), range](ucs_status_t status) {
                    --self->sending_;
                    if (status != UCS_OK) return self->Fail(Lost(status));
                    self->progressed_at_ = self->service_.loop().Now();
                    self->counters().bytes_sent += range.length;
                    if (self->phase_ == Phase::kLeaving && self->sending_ == 0) self->Close();
                  });
}

bool Session::HandlePut(const Incoming& incoming, const Message& message) {
  if (incoming.length != message.range.length) {
    Fail(ProtocolViolation("a payload of another length than its range"));
    return false;
  }
  if (receiving_ + static_cast<int>(announced_.size()) >= kInFlightMax) {
    Fail(ProtocolViolation("too many ranges in flight"));
    return false;
  }
  if (absl::Status allowed = CheckAllowed(claims_, message.range); !allowed.ok()) {
    Fail(std::move(allowed));
    return false;
  }
  // Ranges go by rendezvous; what comes whole is small, or not from a client of ours.
  eager_bytes_ += incoming.eager.size();
  if (eager_bytes_ > kEagerBytesMax) {
    Fail(ProtocolViolation("ranges that did not wait to be received"));
    return false;
  }
  announced_.push_back(
      {message, incoming.announced, {incoming.eager.begin(), incoming.eager.end()}});
  progressed_at_ = service_.loop().Now();
  // After UCX's handler has returned and the announcement is ours.
  service_.loop().Defer([self = shared_from_this()] { self->Pump(); });
  return true;
}

void Session::Pump() {
  while (phase_ == Phase::kOpen && !announced_.empty() && receiving_ < kInFlightMax &&
         service_.receiving() < service_.limits().receiving_max && TakeFirst()) {
  }
}

// False when the first range has to wait for another connection; the next tick tries again.
bool Session::TakeFirst() {
  auto begun = target_->Begin(announced_.front().message.range);
  if (absl::IsUnavailable(begun.status()) && ReasonOf(begun.status()) == "RANGE_BUSY") return false;
  if (!begun.ok()) {
    Fail(begun.status());
    return false;
  }
  Announced first = std::move(announced_.front());
  announced_.pop_front();
  eager_bytes_ -= first.eager.size();
  auto slot = std::make_shared<PutTarget::Slot>(*std::move(begun));
  ++receiving_;
  ++service_.receiving();
  if (first.announced == nullptr) {
    std::memcpy(slot->destination().data(), first.eager.data(), first.eager.size());
    Verify(std::move(first.message), std::move(slot));
    return true;
  }
  endpoint_->Receive(first.announced, slot->destination(),
                     [self = shared_from_this(), message = std::move(first.message),
                      slot](ucs_status_t status) mutable {
                       if (status == UCS_OK && self->phase_ == Phase::kOpen) {
                         return self->Verify(std::move(message), std::move(slot));
                       }
                       --self->receiving_;
                       --self->service_.receiving();
                       if (status != UCS_OK) self->Fail(Lost(status));
                     });
  return true;
}

void Session::Verify(Message message, std::shared_ptr<PutTarget::Slot> slot) {
  ++hashing_;
  service_.hasher().PostAnswer([self = shared_from_this(), message = std::move(message),
                                slot = std::move(slot)] {
    absl::Status finished = self->target_->Finish(std::move(*slot), message.pieces);
    self->service_.loop().Post([self, finished, request = message.request, range = message.range] {
      --self->hashing_;
      --self->receiving_;
      --self->service_.receiving();
      if (self->phase_ == Phase::kOpen && finished.ok()) {
        self->progressed_at_ = self->service_.loop().Now();
        self->counters().bytes_received += range.length;
        self->endpoint_->Send(Encode({.kind = Kind::kDone, .request = request}), {},
                              [self](ucs_status_t status) {
                                if (status != UCS_OK) self->Fail(Lost(status));
                              });
      } else if (self->phase_ == Phase::kOpen) {
        self->Fail(finished);
      }
      self->ForgetIfQuiet();
      self->service_.PumpAll();
    });
  });
}

void Session::HandleTick(Tick now) {
  if (phase_ == Phase::kLeaving && now - progressed_at_ >= kLastWordMs) return Close();
  const ServerLimits& limits = service_.limits();
  const Tick allowed = admitted_ ? limits.idle_deadline_ms : limits.ticket_deadline_ms;
  if (now - progressed_at_ >= allowed) return Fail(IdleFor(allowed));
  Pump();
}

void Session::HandleGone(const absl::Status& why) {
  if (phase_ >= Phase::kLeaving) return;
  if (!why.ok() || sending_ == 0) return Close();
  phase_ = Phase::kLeaving;
  progressed_at_ = service_.loop().Now();
}

void Session::Fail(absl::Status status) {
  if (phase_ >= Phase::kLeaving) return;
  if (!HasLeft(status)) {
    service_.handler().OnFailed({.transport = NameOf(lane_),
                                 .peer = stream_->peer(),
                                 .object = claims_.object,
                                 .why = status});
  }
  stream_->Close(std::move(status));
  Close();
}

void Session::Close() {
  if (phase_ == Phase::kClosing) return;
  phase_ = Phase::kClosing;
  stream_->Close(absl::OkStatus());
  service_.loop().Defer([self = shared_from_this()] {
    const auto closed = [self] {
      self->closed_ = true;
      self->ForgetIfQuiet();
    };
    if (self->endpoint_ == nullptr) return closed();
    for (const Announced& waiting : std::exchange(self->announced_, {})) {
      if (waiting.announced != nullptr) self->endpoint_->Refuse(waiting.announced);
    }
    self->endpoint_->Close(closed);
  });
}

void Session::ForgetIfQuiet() {
  if (!closed_ || hashing_ > 0) return;
  if (std::exchange(admitted_, false)) {
    --service_.admitted();
    --counters().sessions_open;
  }
  service_.Forget(stream_.get());
}

}  // namespace lorry::transfer::ucx
