// The serving side: a session for each Attach stream. The stream brings the ticket and the peer's
// address, UCX the ranges. Internal to lib/transfer/ucx.
#pragma once

#include <array>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lib/base/mutex.h"
#include "lib/rpc/stream.h"
#include "lib/runtime/loop.h"
#include "lib/transfer/doorstep.h"
#include "lib/transfer/session.h"
#include "lib/transfer/ucx/handshake.h"
#include "lib/transfer/ucx/host_proof.h"
#include "lib/transfer/ucx/loop.h"
#include "lib/transfer/ucx/ucx_transport.h"
#include "lib/transfer/ucx/wire.h"
#include "lorry/transfer/v1/ucx.grpc.pb.h"

namespace lorry::transfer::ucx {

namespace pb = ::lorry::transfer::v1;

class UcxService;

// Where streams and handlers post to, which may outlive the service.
class Mailbox {
 public:
  using Task = std::function<void(UcxService&)>;
  void Post(Task task) LORRY_EXCLUDES(mutex_);
  void Open(UcxService* service) LORRY_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    service_ = service;
  }
  void Close() { Open(nullptr); }

 private:
  Mutex mutex_;
  UcxService* service_ LORRY_GUARDED_BY(mutex_) = nullptr;
};

// The gRPC side of a session: passes on what comes, on gRPC's threads.
class AttachStream final : public rpc::BidiStream<pb::AttachRequest, pb::AttachResponse>,
                           public std::enable_shared_from_this<AttachStream> {
 public:
  // Two answers at most: a challenge, and the address.
  AttachStream(std::shared_ptr<Mailbox> mailbox, std::string peer)
      : BidiStream(2), mailbox_(std::move(mailbox)), peer_(std::move(peer)) {}
  const std::string& peer() const { return peer_; }  // "ipv4:10.0.0.1:4711"

 private:
  void OnOpen() override;
  void OnMessage(pb::AttachRequest message) override;
  void OnClosed(const absl::Status& why) override;
  const std::shared_ptr<Mailbox> mailbox_;
  const std::string peer_;
};

// A range that a publisher announced: received when its turn comes, which is how this side paces.
struct Announced {
  Message message;
  void* announced = nullptr;     // waits at its sender
  std::vector<std::byte> eager;  // or came with the message, when small
};

// One Attach stream and its endpoint. The loop's thread only.
class Session : public std::enable_shared_from_this<Session> {
 public:
  Session(UcxService& service, std::shared_ptr<AttachStream> stream, Doorstep::Place place,
          Tick now)
      : service_(service),
        stream_(std::move(stream)),
        place_(std::move(place)),
        progressed_at_(now) {}
  void HandleRequest(const pb::AttachRequest& request);
  // The client has half-closed, or its process or the way to it has gone.
  void HandleGone(const absl::Status& why);
  void HandleTick(Tick now);
  void Pump();
  // Tells the peer why, and closes.
  void Fail(absl::Status status);

 private:
  enum class Phase { kConnected, kChallenged, kOpening, kOpen, kLeaving, kClosing };
  absl::Status HandleOpen(const pb::AttachRequest::Open& open);
  absl::Status HandleAddress(const pb::UcxAddress& address);
  void HandleOpened(absl::StatusOr<GetSource> source);
  void HandleOpened(absl::StatusOr<std::shared_ptr<PutTarget>> target);
  void Opened(uint64_t image_bytes);
  bool HandleMessage(const Incoming& incoming);
  void HandleGet(const Message& message);
  void SendRange(const Message& request, std::vector<Checksum> pieces);
  bool HandlePut(const Incoming& incoming, const Message& message);
  bool TakeFirst();
  void Verify(Message message, std::shared_ptr<PutTarget::Slot> slot);
  void Close();
  void ForgetIfQuiet();
  Counters& counters();

  UcxService& service_;
  const std::shared_ptr<AttachStream> stream_;
  Doorstep::Place place_;  // until it has shown a ticket
  Handshake handshake_;
  Endpoint* endpoint_ = nullptr;
  Phase phase_ = Phase::kConnected;
  UcxLane lane_ = UcxLane::kSharedMemory;  // known once it has opened
  TicketClaims claims_;
  GetSource source_;
  std::shared_ptr<PutTarget> target_;
  std::deque<Announced> announced_;
  size_t eager_bytes_ = 0;  // of these
  int sending_ = 0, receiving_ = 0, hashing_ = 0;
  bool admitted_ = false;
  bool closed_ = false;
  Tick progressed_at_;
};

class UcxService final : public GrpcTransferService {
 public:
  UcxService(UcxServiceOptions options, rpc::Gate& gate, const TicketKeys& keys,
             TransferHandler& handler)
      : options_(std::move(options)), gate_(gate), keys_(keys), handler_(handler), rpc_(*this) {}
  absl::Status Init();
  ~UcxService() override;

  grpc::Service* service() override { return &rpc_; }
  void Close() override;
  std::map<std::string, TransportStats> stats() const override;

  // For streams, by the mailbox.
  void HandleConnected(const std::shared_ptr<AttachStream>& stream);
  std::shared_ptr<Session> Find(const AttachStream* stream) const;

  // For sessions.
  Loop& loop() { return *loop_; }
  runtime::Loop& hasher() { return *hasher_; }
  const std::shared_ptr<Mailbox>& mailbox() { return mailbox_; }
  const HostSecret& secret() const { return *secret_; }
  const TicketKeys& keys() const { return keys_; }
  TransferHandler& handler() { return handler_; }
  Counters& counters(UcxLane lane) { return counters_[static_cast<size_t>(lane)]; }
  const ServerLimits& limits() const { return options_.limits; }
  // The name behind a stream's credentials; empty where everybody may call.
  std::string CallerOf(const AttachStream& stream) const;
  // Sessions that have shown a ticket.
  int& admitted() { return admitted_; }
  int& receiving() { return receiving_; }
  void PumpAll();
  void Forget(const AttachStream* stream);

 private:
  class Rpc final : public pb::UcxService::CallbackService {
   public:
    explicit Rpc(UcxService& service) : service_(service) {}
    grpc::ServerBidiReactor<pb::AttachRequest, pb::AttachResponse>* Attach(
        grpc::CallbackServerContext* context) override {
      return rpc::StartStream(service_.gate_, *context, rpc::Role::kReader,
                              std::make_shared<AttachStream>(service_.mailbox_, context->peer()));
    }

   private:
    UcxService& service_;
  };
  void HandleTick(Tick now);
  std::vector<std::shared_ptr<Session>> Sessions() const;
  void EndIfEmpty();

  const UcxServiceOptions options_;
  rpc::Gate& gate_;
  const TicketKeys& keys_;
  TransferHandler& handler_;
  std::array<Counters, 2> counters_;  // by UcxLane
  const std::shared_ptr<Mailbox> mailbox_ = std::make_shared<Mailbox>();
  std::unique_ptr<HostSecret> secret_;
  // The loop's thread.
  std::unordered_map<const AttachStream*, std::shared_ptr<Session>> sessions_;
  Doorstep doorstep_{options_.limits.ticketless_max, options_.limits.ticketless_per_host_max};
  int admitted_ = 0;
  int receiving_ = 0;
  bool stopping_ = false;

  Mutex mutex_;
  CondVar changed_;
  bool stopped_ LORRY_GUARDED_BY(mutex_) = false;

  std::unique_ptr<Loop> loop_;
  std::unique_ptr<runtime::Loop> hasher_;
  Rpc rpc_;
};

}  // namespace lorry::transfer::ucx
