#include "lib/transfer/ucx/service.h"

#include "lib/base/check.h"
#include "lib/base/error.h"

namespace lorry::transfer {
namespace ucx {

void Mailbox::Post(Task task) {
  MutexLock lock(mutex_);
  if (service_ == nullptr) return;
  service_->loop().Post([service = service_, task = std::move(task)] { task(*service); });
}

void AttachStream::OnOpen() {
  mailbox_->Post(
      [self = shared_from_this()](UcxService& service) { service.HandleConnected(self); });
}

void AttachStream::OnMessage(pb::AttachRequest message) {
  mailbox_->Post([this, message = std::move(message)](UcxService& service) {
    if (const auto session = service.Find(this)) session->HandleRequest(message);
  });
}

void AttachStream::OnClosed(const absl::Status& why) {
  mailbox_->Post([this, why](UcxService& service) {
    if (const auto session = service.Find(this)) session->HandleGone(why);
  });
}

absl::Status UcxService::Init() {
  LORRY_ASSIGN_OR_RETURN(secret_, HostSecret::Create());
  hasher_ = std::make_unique<runtime::Loop>("transfer-hash");
  std::vector<UcxLane> lanes;
  if (options_.shared_memory) lanes.push_back(UcxLane::kSharedMemory);
  if (!options_.devices.empty()) lanes.push_back(UcxLane::kNetwork);
  LORRY_ASSIGN_OR_RETURN(loop_, Loop::Start(lanes, options_.devices,
                                            {.busy = [this] { return !sessions_.empty(); },
                                             .on_tick = [this](Tick now) { HandleTick(now); }}));
  mailbox_->Open(this);
  return absl::OkStatus();
}

std::map<std::string, TransportStats> UcxService::stats() const {
  std::map<std::string, TransportStats> stats;
  for (const UcxLane lane : {UcxLane::kSharedMemory, UcxLane::kNetwork}) {
    if (loop_->Has(lane)) {
      stats[std::string(NameOf(lane))] = counters_[static_cast<size_t>(lane)].Snapshot();
    }
  }
  return stats;
}

UcxService::~UcxService() {
  if (loop_ == nullptr) return;
  Close();
  mailbox_->Close();
  hasher_.reset();
  loop_.reset();
}

void UcxService::Close() {
  loop_->PostAndWait([this] {
    stopping_ = true;
    for (const auto& session : Sessions()) session->Fail(ConnectionLost("the server closes"));
    EndIfEmpty();
  });
  MutexLock lock(mutex_);
  while (!stopped_) changed_.wait(mutex_);
}

void UcxService::HandleConnected(const std::shared_ptr<AttachStream>& stream) {
  if (stopping_) return stream->Close(ConnectionLost("the server closes"));
  auto place = doorstep_.Enter(stream->peer());
  if (!place.ok()) return stream->Close(place.status());
  sessions_[stream.get()] =
      std::make_shared<Session>(*this, stream, *std::move(place), loop_->Now());
}

std::string UcxService::CallerOf(const AttachStream& stream) const {
  return gate_.open_to_all() ? std::string() : stream.caller().name;
}

std::shared_ptr<Session> UcxService::Find(const AttachStream* stream) const {
  const auto found = sessions_.find(stream);
  return found == sessions_.end() ? nullptr : found->second;
}

std::vector<std::shared_ptr<Session>> UcxService::Sessions() const {
  std::vector<std::shared_ptr<Session>> sessions;  // a copy: what follows may forget some
  for (const auto& [stream, session] : sessions_) sessions.push_back(session);
  return sessions;
}

void UcxService::HandleTick(Tick now) {
  for (const auto& session : Sessions()) session->HandleTick(now);
}

void UcxService::PumpAll() {
  for (const auto& session : Sessions()) session->Pump();
}

void UcxService::Forget(const AttachStream* stream) {
  sessions_.erase(stream);
  EndIfEmpty();
}

void UcxService::EndIfEmpty() {
  if (!stopping_ || !sessions_.empty()) return;
  MutexLock lock(mutex_);
  stopped_ = true;
  changed_.notify_all();
}

}  // namespace ucx

absl::StatusOr<std::unique_ptr<GrpcTransferService>> CreateUcxService(UcxServiceOptions options,
                                                                      rpc::Gate& gate,
                                                                      const TicketKeys& keys,
                                                                      TransferHandler& handler) {
  auto service = std::make_unique<ucx::UcxService>(std::move(options), gate, keys, handler);
  LORRY_RETURN_IF_ERROR(service->Init());
  return service;
}

}  // namespace lorry::transfer
