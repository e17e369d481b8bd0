// The three long streams of SyncService. Included by sync_service.cc alone.
#pragma once

#include <optional>
#include <string>

#include "lib/rpc/fleet_messages.h"
#include "services/sync_orchestrator/rpc/sync_service.h"

namespace lorry::sync {

// A proxy's session. The first message is Hello; every later one is Observed.
class SyncService::AttachStream final
    : public rpc::BidiStream<v1::AttachRequest, v1::AttachResponse> {
 public:
  explicit AttachStream(SyncService& service)
      : service_(service), port_(std::make_shared<Port>()) {}

 private:
  // What the driver holds: it may call after the stream has gone.
  class Port final : public MemberSession {
   public:
    void SendDesired(const fleet::Desired& desired) override {
      v1::AttachResponse message;
      *message.mutable_desired() = rpc::ToProto(desired);
      MutexLock lock(mutex_);
      if (stream_ != nullptr) (void)stream_->Send(std::move(message));
    }
    void End(const absl::Status& status) override {
      MutexLock lock(mutex_);
      if (stream_ != nullptr) stream_->Close(status);
    }
    void Bind(AttachStream* stream) {
      MutexLock lock(mutex_);
      stream_ = stream;
    }

   private:
    Mutex mutex_;
    AttachStream* stream_ LORRY_GUARDED_BY(mutex_) = nullptr;
  };

  void OnMessage(v1::AttachRequest message) override {
    const absl::Status status =
        message.has_hello() ? Open(message.hello()) : Take(message.observed());
    if (!status.ok()) Close(status);
  }

  absl::Status Open(const v1::Hello& hello) {
    if (session_.has_value()) {
      return Error(absl::StatusCode::kInvalidArgument, "MESSAGE_INVALID",
                   "a session has one Hello");
    }
    LORRY_RETURN_IF_ERROR(CheckName("the member", hello.member()));
    LORRY_RETURN_IF_ERROR(CheckName("the pool", hello.pool()));
    LORRY_ASSIGN_OR_RETURN(fleet::Observed observed, rpc::FromProto(hello.observed()));
    port_->Bind(this);
    LORRY_ASSIGN_OR_RETURN(session_, service_.orchestrator().OpenSession(
                                         MemberId(hello.member()), PoolName(hello.pool()),
                                         std::move(observed), ContactOf(hello), port_));
    return absl::OkStatus();
  }

  absl::Status Take(const v1::Observed& message) {
    if (!session_.has_value()) {
      return Error(absl::StatusCode::kInvalidArgument, "MESSAGE_INVALID",
                   "a session begins with Hello");
    }
    LORRY_ASSIGN_OR_RETURN(fleet::Observed observed, rpc::FromProto(message));
    service_.orchestrator().Report(*session_, std::move(observed));
    return absl::OkStatus();
  }

  void OnClosed(const absl::Status&) override {
    port_->Bind(nullptr);
    if (session_.has_value()) service_.orchestrator().CloseSession(*session_);
  }

  SyncService& service_;
  const std::shared_ptr<Port> port_;
  std::optional<SessionId> session_;  // messages come one at a time
};

// One version's states. Latest wins: a slow reader misses states between, never the last.
class SyncService::WatchSyncStream final : public rpc::WriteStream<v1::WatchSyncResponse>,
                                           public std::enable_shared_from_this<WatchSyncStream> {
 public:
  WatchSyncStream(SyncService& service, v1::WatchSyncRequest request)
      : WriteStream(rpc::kLatestWins),
        service_(service),
        request_(std::move(request)),
        port_(std::make_shared<Port>()) {}

 private:
  class Port final : public SyncWatcher {
   public:
    void OnWatch(const WatchEvent& event, const PhaseTimes& times) override {
      v1::WatchSyncResponse message = ToProto(event, times);
      MutexLock lock(mutex_);
      if (stream_ == nullptr) return;
      if (event.is_unknown && !doubt_.ok()) message.set_detail(InDoubt(event.detail, doubt_));
      (void)stream_->Send(std::move(message));
      if (event.final) stream_->Close(absl::OkStatus());
    }
    void Bind(WatchSyncStream* stream) {
      MutexLock lock(mutex_);
      if (!unbound_) stream_ = stream;
      unbound_ = unbound_ || stream == nullptr;
    }
    // Why what is unknown may be new.
    void Doubt(const absl::Status& why) {
      MutexLock lock(mutex_);
      doubt_ = why;
    }

   private:
    Mutex mutex_;
    WatchSyncStream* stream_ LORRY_GUARDED_BY(mutex_) = nullptr;
    bool unbound_ LORRY_GUARDED_BY(mutex_) = false;  // for ever
    absl::Status doubt_ LORRY_GUARDED_BY(mutex_);
  };

  void OnOpen() override {
    port_->Bind(this);
    const absl::StatusOr<VersionKey> version = service_.CompleteVersion(request_.version());
    if (version.ok() && service_.store_.Knows(*version, PoolFor(*version))) return Open();
    service_.store_.AskToCatchUp([weak = weak_from_this()](const absl::Status& caught_up) {
      const std::shared_ptr<WatchSyncStream> self = weak.lock();
      if (self == nullptr) return;
      self->port_->Doubt(caught_up);
      self->Open(caught_up);
    });
  }

  void Open(const absl::Status& caught_up = absl::OkStatus()) {
    absl::Status opened = Watch();
    if (absl::IsNotFound(opened) && !caught_up.ok()) opened = InDoubt(opened, caught_up);
    if (!opened.ok()) Close(std::move(opened));
  }

  // Under the lock, so that OnClosed, after which the service may go, waits for it.
  absl::Status Watch() {
    MutexLock lock(watch_mutex_);
    if (closed_) return absl::OkStatus();
    LORRY_ASSIGN_OR_RETURN(VersionKey version, service_.CompleteVersion(request_.version()));
    PoolName pool = PoolFor(version);
    LORRY_ASSIGN_OR_RETURN(
        watch_, service_.orchestrator_.OpenWatch(std::move(version), std::move(pool), port_));
    return absl::OkStatus();
  }

  PoolName PoolFor(const VersionKey& version) const {
    return service_.CompletePool(request_.pool(), version.adapter);
  }

  void OnClosed(const absl::Status&) override {
    port_->Bind(nullptr);
    MutexLock lock(watch_mutex_);
    closed_ = true;
    if (watch_.has_value()) service_.orchestrator_.CloseWatch(*watch_);
  }

  SyncService& service_;
  const v1::WatchSyncRequest request_;
  const std::shared_ptr<Port> port_;
  Mutex watch_mutex_;
  bool closed_ LORRY_GUARDED_BY(watch_mutex_) = false;
  std::optional<WatchId> watch_ LORRY_GUARDED_BY(watch_mutex_);
};

// The whole picture, again and again. Latest wins.
class SyncService::WatchStream final : public rpc::WriteStream<grpc::ByteBuffer>,
                                       public std::enable_shared_from_this<WatchStream> {
 public:
  WatchStream(SyncService& service, absl::StatusOr<std::string> pool)
      : WriteStream(rpc::kLatestWins), service_(service), pool_(std::move(pool)) {}

  const std::string& pool() const { return *pool_; }

 private:
  // Not before it is admitted: nothing is shown to a caller who may not see it.
  void OnOpen() override {
    if (!pool_.ok()) return Close(pool_.status());
    service_.AddWatcher(weak_from_this());
  }
  void OnClosed(const absl::Status&) override {}

  SyncService& service_;
  const absl::StatusOr<std::string> pool_;
};

}  // namespace lorry::sync
