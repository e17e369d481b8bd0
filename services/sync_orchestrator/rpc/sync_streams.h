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
class SyncService::WatchSyncStream final : public rpc::WriteStream<v1::WatchSyncResponse> {
 public:
  WatchSyncStream(Orchestrator& orchestrator, absl::StatusOr<VersionKey> version, PoolName pool)
      : WriteStream(rpc::kLatestWins),
        orchestrator_(orchestrator),
        version_(std::move(version)),
        pool_(std::move(pool)),
        port_(std::make_shared<Port>()) {}

 private:
  class Port final : public SyncWatcher {
   public:
    void OnWatch(const WatchEvent& event, const PhaseTimes& times) override {
      MutexLock lock(mutex_);
      if (stream_ == nullptr) return;
      (void)stream_->Send(ToProto(event, times));
      if (event.final) stream_->Close(absl::OkStatus());
    }
    void Bind(WatchSyncStream* stream) {
      MutexLock lock(mutex_);
      if (!unbound_) stream_ = stream;
      unbound_ = unbound_ || stream == nullptr;
    }

   private:
    Mutex mutex_;
    WatchSyncStream* stream_ LORRY_GUARDED_BY(mutex_) = nullptr;
    bool unbound_ LORRY_GUARDED_BY(mutex_) = false;  // for ever
  };

  void OnOpen() override {
    if (!version_.ok()) return Close(version_.status());
    port_->Bind(this);
    absl::StatusOr<WatchId> watch = orchestrator_.OpenWatch(*version_, pool_, port_);
    if (!watch.ok()) return Close(watch.status());
    MutexLock lock(watch_mutex_);
    watch_ = *watch;
    if (closed_) orchestrator_.CloseWatch(*watch_);
  }

  void OnClosed(const absl::Status&) override {
    port_->Bind(nullptr);
    MutexLock lock(watch_mutex_);
    closed_ = true;
    if (watch_.has_value()) orchestrator_.CloseWatch(*watch_);
  }

  Orchestrator& orchestrator_;
  const absl::StatusOr<VersionKey> version_;
  const PoolName pool_;
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
