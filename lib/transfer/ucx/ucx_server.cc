// The serving side: a session for each endpoint; its first message has to be a good ticket.
#include <cstring>
#include <deque>
#include <unordered_map>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "lib/base/check.h"
#include "lib/base/error.h"
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

// How long a session that was refused or has failed waits for its last word to reach the peer.
constexpr Tick kLastWordMs = 500;

class UcxServer;

// A range that a publisher announced: received when its turn comes, which is how this side paces.
struct Announced {
  Message message;
  void* announced = nullptr;     // waits at its sender
  std::vector<std::byte> eager;  // or came with the message, when small
};

// One endpoint. The worker's thread only.
class Session : public std::enable_shared_from_this<Session> {
 public:
  explicit Session(UcxServer& server, Tick now) : server_(server), progressed_at_(now) {}
  void Attach(Endpoint* endpoint) { endpoint_ = endpoint; }
  bool HandleMessage(const Incoming& incoming);
  void HandleTick(Tick now);
  void Pump();
  // Closes at once: the peer has gone.
  void Close();
  // Tells the peer why, then closes.
  void Fail(absl::Status status);

 private:
  enum class Phase { kConnected, kOpening, kOpen, kFailing, kClosing };
  void HandleOpen(const Message& message);
  void HandleOpened(absl::StatusOr<GetSource> source);
  void HandleOpened(absl::StatusOr<std::shared_ptr<PutTarget>> target);
  void Opened(uint64_t image_bytes);
  void HandleGet(const Message& message);
  void SendRange(const Message& request, std::vector<Checksum> pieces);
  bool HandlePut(const Incoming& incoming, const Message& message);
  bool TakeFirst();
  void Verify(Message message, std::shared_ptr<PutTarget::Slot> slot);
  void SendMessage(Message message, std::span<const std::byte> payload = {},
                   Endpoint::Done done = {});
  void ForgetIfQuiet();

  UcxServer& server_;
  Endpoint* endpoint_ = nullptr;
  Phase phase_ = Phase::kConnected;
  uint64_t id_ = 0;  // the client's
  TicketClaims claims_;
  GetSource source_;
  std::shared_ptr<PutTarget> target_;
  std::deque<Announced> announced_;
  int sending_ = 0, receiving_ = 0, hashing_ = 0;
  bool closed_ = false;
  Tick progressed_at_;
};

class UcxServer final : public TransferServer {
 public:
  UcxServer(UcxServerOptions options, const TicketKeys& keys, TransferHandler& handler)
      : options_(std::move(options)), keys_(keys), handler_(handler) {}
  absl::Status Init();
  ~UcxServer() override;

  std::string address() const override { return address_; }
  TransportStats stats() const override { return counters_.Snapshot(); }

  // For sessions.
  Worker& worker() { return *worker_; }
  TaskThread& hasher() { return *hasher_; }
  const TicketKeys& keys() const { return keys_; }
  TransferHandler& handler() { return handler_; }
  Counters& counters() { return counters_; }
  const ServerLimits& limits() const { return options_.limits; }
  int& receiving() { return receiving_; }
  // Runs `task` on the worker's thread as long as there is one: handlers may answer after the
  // server has gone.
  std::function<void(std::function<void()>)> Poster() const;
  void PumpAll();
  void Forget(Session* session);

 private:
  // What Poster's closures share with the server.
  struct Mailbox {
    Mutex mutex;
    Worker* worker LORRY_GUARDED_BY(mutex) = nullptr;
  };
  void HandleConnect(ucp_conn_request_h request);
  bool HandleMessage(const Incoming& incoming);
  void HandleTick(Tick now);
  std::vector<std::shared_ptr<Session>> Sessions() const;

  const UcxServerOptions options_;
  const TicketKeys& keys_;
  TransferHandler& handler_;
  std::string address_;
  Counters counters_;
  const std::shared_ptr<Mailbox> mailbox_ = std::make_shared<Mailbox>();
  // Worker's thread.
  std::unordered_map<ucp_ep_h, std::shared_ptr<Session>> by_endpoint_;
  std::unordered_map<Session*, std::shared_ptr<Session>> sessions_;
  int receiving_ = 0;
  bool stopping_ = false;

  Mutex mutex_;
  CondVar changed_;
  bool stopped_ LORRY_GUARDED_BY(mutex_) = false;

  std::unique_ptr<Worker> worker_;
  std::unique_ptr<TaskThread> hasher_;
};

void Session::SendMessage(Message message, std::span<const std::byte> payload,
                          Endpoint::Done done) {
  message.session = id_;
  endpoint_->Send(ucx::Encode(message), payload,
                  [self = shared_from_this(), done = std::move(done)](ucs_status_t status) {
                    if (done) done(status);
                  });
}

bool Session::HandleMessage(const Incoming& incoming) {
  if (phase_ >= Phase::kFailing) return false;
  auto message = ucx::Decode(incoming.header);
  if (!message.ok()) {
    Fail(message.status());
    return false;
  }
  if (phase_ == Phase::kConnected && message->kind == Kind::kOpen) {
    HandleOpen(*message);
    return false;
  }
  if (phase_ == Phase::kOpen && message->session == id_) {
    if (message->kind == Kind::kGet && target_ == nullptr) {
      HandleGet(*message);
      return false;
    }
    if (message->kind == Kind::kPut && target_ != nullptr) return HandlePut(incoming, *message);
  }
  Fail(ProtocolViolation("an unexpected message"));
  return false;
}

void Session::HandleOpen(const Message& message) {
  id_ = message.session;
  phase_ = Phase::kOpening;
  auto claims = Admit(server_.keys(), message.ticket, message.direction, server_.counters());
  if (!claims.ok()) return Fail(claims.status());
  claims_ = *std::move(claims);
  // The answer may come on any thread, and after the session or the server has gone.
  const auto answer = [post = server_.Poster(), weak = weak_from_this()](auto opened) {
    post([weak, opened = std::move(opened)]() mutable {
      if (const auto self = weak.lock()) self->HandleOpened(std::move(opened));
    });
  };
  if (message.direction == Direction::kGet) {
    server_.handler().OpenGet(claims_, answer);
  } else {
    server_.handler().OpenPut(claims_, answer);
  }
}

void Session::HandleOpened(absl::StatusOr<GetSource> source) {
  if (phase_ != Phase::kOpening) return;
  if (!source.ok()) return Fail(source.status());
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
  progressed_at_ = server_.worker().Now();
  SendMessage({.kind = Kind::kOpened, .image_bytes = image_bytes});
}

void Session::HandleGet(const Message& message) {
  if (++sending_ > kInFlightMax) return Fail(ProtocolViolation("too many ranges in flight"));
  absl::Status allowed = CheckAllowed(claims_, message.range);
  if (allowed.ok()) allowed = CheckRange(message.range, source_.bytes.size());
  if (!allowed.ok()) {
    ++server_.counters().ranges_refused;
    return Fail(std::move(allowed));
  }
  if (!source_.leaves.empty())
    return SendRange(message, PieceChecksums(message.range, source_.bytes, source_.leaves));
  ++hashing_;
  server_.hasher().Post([self = shared_from_this(), message] {
    auto pieces = PieceChecksums(message.range, self->source_.bytes, {});
    self->server_.worker().Post([self, message, pieces = std::move(pieces)]() mutable {
      --self->hashing_;
      if (self->phase_ == Phase::kOpen) self->SendRange(message, std::move(pieces));
      self->ForgetIfQuiet();
    });
  });
}

void Session::SendRange(const Message& request, std::vector<Checksum> pieces) {
  const Range range = request.range;
  SendMessage({.kind = Kind::kData,
               .request = request.request,
               .range = range,
               .pieces = std::move(pieces)},
              source_.bytes.subspan(range.offset, range.length),
              [this, range](ucs_status_t status) {
                --sending_;
                if (status != UCS_OK) return Close();
                progressed_at_ = server_.worker().Now();
                server_.counters().bytes_sent += range.length;
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
    ++server_.counters().ranges_refused;
    Fail(std::move(allowed));
    return false;
  }
  announced_.push_back(
      {message, incoming.announced, {incoming.eager.begin(), incoming.eager.end()}});
  progressed_at_ = server_.worker().Now();
  // After UCX's handler has returned and the announcement is ours.
  server_.worker().Defer([self = shared_from_this()] { self->Pump(); });
  return true;
}

void Session::Pump() {
  while (phase_ == Phase::kOpen && !announced_.empty() && receiving_ < kInFlightMax &&
         server_.receiving() < server_.limits().receiving_max && TakeFirst()) {
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
  auto slot = std::make_shared<PutTarget::Slot>(*std::move(begun));
  ++receiving_;
  ++server_.receiving();
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
                       --self->server_.receiving();
                       // One that arrived after the session had failed must not close it: the last
                       // word, which says why, may still be on its way.
                       if (status != UCS_OK) self->Close();
                     });
  return true;
}

void Session::Verify(Message message, std::shared_ptr<PutTarget::Slot> slot) {
  ++hashing_;
  server_.hasher().Post([self = shared_from_this(), message = std::move(message),
                         slot = std::move(slot)] {
    absl::Status finished = self->target_->Finish(std::move(*slot), message.pieces);
    self->server_.worker().Post([self, finished, request = message.request, range = message.range] {
      --self->hashing_;
      --self->receiving_;
      --self->server_.receiving();
      if (self->phase_ == Phase::kOpen && finished.ok()) {
        self->progressed_at_ = self->server_.worker().Now();
        self->server_.counters().bytes_received += range.length;
        self->SendMessage({.kind = Kind::kDone, .request = request});
      } else if (self->phase_ == Phase::kOpen) {
        ++self->server_.counters().ranges_refused;
        self->Fail(finished);
      }
      self->ForgetIfQuiet();
      self->server_.PumpAll();
    });
  });
}

void Session::HandleTick(Tick now) {
  if (phase_ == Phase::kFailing && now - progressed_at_ >= kLastWordMs) return Close();
  if (phase_ < Phase::kFailing && now - progressed_at_ >= server_.limits().idle_deadline_ms) {
    return Fail(IdleFor(server_.limits().idle_deadline_ms));
  }
  Pump();
}

void Session::Fail(absl::Status status) {
  if (phase_ >= Phase::kFailing) return;
  phase_ = Phase::kFailing;
  progressed_at_ = server_.worker().Now();
  ++server_.counters().sessions_failed;
  // The peer closes when it reads this, which closes the session; the tick does if the peer does
  // not.
  SendMessage({.kind = Kind::kDone, .status = std::move(status)});
}

void Session::Close() {
  if (phase_ == Phase::kClosing) return;
  phase_ = Phase::kClosing;
  server_.worker().Defer([self = shared_from_this()] {
    for (const Announced& waiting : std::exchange(self->announced_, {})) {
      if (waiting.announced != nullptr) self->server_.worker().Refuse(waiting.announced);
    }
    self->endpoint_->Close([self] {
      self->closed_ = true;
      self->ForgetIfQuiet();
    });
  });
}

void Session::ForgetIfQuiet() {
  if (closed_ && hashing_ == 0) server_.Forget(this);
}

absl::Status UcxServer::Init() {
  hasher_ = std::make_unique<TaskThread>();
  auto worker =
      Worker::Start({.on_message = [this](const Incoming& in) { return HandleMessage(in); },
                     .on_tick = [this](Tick now) { HandleTick(now); },
                     .on_connect = [this](ucp_conn_request_h r) { HandleConnect(r); }});
  if (!worker.ok()) return worker.status();
  worker_ = *std::move(worker);
  {
    MutexLock lock(mailbox_->mutex);
    mailbox_->worker = worker_.get();
  }
  absl::StatusOr<int> port = 0;
  worker_->PostAndWait([&] { port = worker_->Listen(options_.host, options_.port); });
  if (!port.ok()) return port.status();
  const bool v6 = options_.host.find(':') != std::string::npos;
  address_ = absl::StrCat("ucx://", v6 ? "[" : "", options_.host, v6 ? "]" : "", ":", *port);
  return absl::OkStatus();
}

UcxServer::~UcxServer() {
  if (worker_ == nullptr) return;
  worker_->PostAndWait([this] {
    stopping_ = true;
    worker_->StopListening();
    for (const auto& session : Sessions()) session->Close();
    if (sessions_.empty()) {
      MutexLock lock(mutex_);
      stopped_ = true;
    }
  });
  {
    MutexLock lock(mutex_);
    while (!stopped_) changed_.wait(mutex_);
  }
  {
    MutexLock lock(mailbox_->mutex);
    mailbox_->worker = nullptr;
  }
  hasher_.reset();
  worker_.reset();
}

std::function<void(std::function<void()>)> UcxServer::Poster() const {
  return [mailbox = mailbox_](std::function<void()> task) {
    MutexLock lock(mailbox->mutex);
    if (mailbox->worker != nullptr) mailbox->worker->Post(std::move(task));
  };
}

void UcxServer::HandleConnect(ucp_conn_request_h request) {
  if (stopping_ || sessions_.size() >= static_cast<size_t>(options_.limits.sessions_max)) {
    return worker_->Reject(request);
  }
  auto session = std::make_shared<Session>(*this, worker_->Now());
  auto endpoint = worker_->Accept(request, [raw = session.get()](ucs_status_t) { raw->Close(); });
  if (!endpoint.ok()) return;
  session->Attach(*endpoint);
  by_endpoint_[(*endpoint)->handle()] = session;
  sessions_[session.get()] = session;
  ++counters_.sessions_opened;
  ++counters_.sessions_open;
}

bool UcxServer::HandleMessage(const Incoming& incoming) {
  const auto found = by_endpoint_.find(incoming.endpoint);
  if (found == by_endpoint_.end()) return false;
  return std::shared_ptr(found->second)->HandleMessage(incoming);
}

std::vector<std::shared_ptr<Session>> UcxServer::Sessions() const {
  std::vector<std::shared_ptr<Session>> sessions;  // a copy: what follows may forget some
  for (const auto& [raw, session] : sessions_) sessions.push_back(session);
  return sessions;
}

void UcxServer::HandleTick(Tick now) {
  for (const auto& session : Sessions()) session->HandleTick(now);
}

void UcxServer::PumpAll() {
  for (const auto& session : Sessions()) session->Pump();
}

void UcxServer::Forget(Session* session) {
  std::erase_if(by_endpoint_,
                [session](const auto& entry) { return entry.second.get() == session; });
  if (sessions_.erase(session) > 0) --counters_.sessions_open;
  if (!stopping_ || !sessions_.empty()) return;
  MutexLock lock(mutex_);
  stopped_ = true;
  changed_.notify_all();
}

}  // namespace

absl::StatusOr<std::unique_ptr<TransferServer>> StartUcxServer(UcxServerOptions options,
                                                               const TicketKeys& keys,
                                                               TransferHandler& handler) {
  auto server = std::make_unique<UcxServer>(std::move(options), keys, handler);
  LORRY_RETURN_IF_ERROR(server->Init());
  return server;
}

}  // namespace lorry::transfer
