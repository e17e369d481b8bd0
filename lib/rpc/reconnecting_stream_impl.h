// The templates of lib/rpc/reconnecting_stream.h.
//
// A connection is one gRPC call. It is held by the reconnector until its Wait has returned, which
// is after OnDone; the rules of gRPC's callback API: operations started outside of reactions need a
// hold, one write in flight.
#pragma once

#include <optional>
#include <utility>

namespace lorry::rpc {

// What both directions share: waiting for the end, and whether anything was said before.
class ConnectionState {
 public:
  // True when a message came.
  bool WaitDone() {
    MutexLock lock(mutex_);
    while (!done_) ended_.wait(mutex_);
    return heard_;
  }
  void SetHeard() {
    MutexLock lock(mutex_);
    heard_ = true;
  }
  // Notifies under the lock: the waiter may destroy this as soon as it has it.
  void SetDone() {
    MutexLock lock(mutex_);
    done_ = true;
    ended_.notify_all();
  }

 private:
  Mutex mutex_;
  CondVar ended_;
  bool heard_ LORRY_GUARDED_BY(mutex_) = false;
  bool done_ LORRY_GUARDED_BY(mutex_) = false;
};

template <typename Out, typename In>
class ReconnectingStream<Out, In>::Connection final : public Reactor, public Dial {
 public:
  Connection(const Hooks& hooks, size_t fifo_max) : hooks_(hooks), outbox_(fifo_max) {}

  void Start() {
    hooks_.start(&context_, this);
    // Writes come from other threads until the stream ends.
    this->AddHold();
    {
      MutexLock lock(mutex_);
      Write(hooks_.hello());
    }
    this->StartCall();
  }

  bool Send(Out message) {
    MutexLock lock(mutex_);
    if (!open_ || !outbox_.Put(std::move(message))) return false;
    if (!writing_) WriteNext();
    return true;
  }
  void Cancel() override { context_.TryCancel(); }
  bool Wait() override { return state_.WaitDone(); }

 private:
  void Write(Out message) LORRY_REQUIRES(mutex_) {
    outgoing_ = std::move(message);
    writing_ = true;
    this->StartWrite(&outgoing_);
  }
  void WriteNext() LORRY_REQUIRES(mutex_) {
    if (std::optional<Out> next = outbox_.Take()) Write(*std::move(next));
  }
  // No write is begun after this. Lets gRPC finish the call.
  void EndWrites() {
    {
      MutexLock lock(mutex_);
      open_ = false;
      if (ended_) return;
      ended_ = true;
    }
    this->RemoveHold();
  }

  void OnReadInitialMetadataDone(bool ok) override {
    if (!ok) return EndWrites();
    {
      MutexLock lock(mutex_);
      open_ = !ended_;
    }
    hooks_.on_open();
    // Not before: gRPC may report a message and the initial metadata in either order.
    this->StartRead(&incoming_);
  }
  void OnReadDone(bool ok) override {
    if (!ok) return EndWrites();
    state_.SetHeard();
    hooks_.on_message(std::move(incoming_));
    incoming_ = In();
    this->StartRead(&incoming_);
  }
  void OnWriteDone(bool ok) override {
    MutexLock lock(mutex_);
    writing_ = false;
    if (ok && !ended_) WriteNext();
  }
  void OnDone(const grpc::Status& status) override {
    hooks_.on_closed(FromGrpc(status));
    state_.SetDone();
  }

  const Hooks& hooks_;  // the stream's, which outlives its connections
  grpc::ClientContext context_;
  ConnectionState state_;
  In incoming_;
  Mutex mutex_;
  Outbox<Out> outbox_ LORRY_GUARDED_BY(mutex_);
  Out outgoing_;  // gRPC reads it while `writing_`
  bool writing_ LORRY_GUARDED_BY(mutex_) = false;
  bool open_ LORRY_GUARDED_BY(mutex_) = false;
  bool ended_ LORRY_GUARDED_BY(mutex_) = false;
};

template <typename Out, typename In>
ReconnectingStream<Out, In>::ReconnectingStream(Hooks hooks, Backoff backoff, size_t fifo_max)
    : hooks_(std::move(hooks)), fifo_max_(fifo_max), reconnector_(backoff, [this] {
        auto connection = std::make_shared<Connection>(hooks_, fifo_max_);
        {
          MutexLock lock(mutex_);
          current_ = connection;
        }
        connection->Start();
        return connection;
      }) {}

template <typename Out, typename In>
bool ReconnectingStream<Out, In>::Send(Out message) {
  std::shared_ptr<Connection> connection;
  {
    MutexLock lock(mutex_);
    connection = current_;
  }
  return connection != nullptr && connection->Send(std::move(message));
}

template <typename In>
class ReconnectingReader<In>::Connection final : public Reactor, public Dial {
 public:
  explicit Connection(const Hooks& hooks) : hooks_(hooks) {}

  void Start() {
    hooks_.start(&context_, this);
    this->StartCall();
  }
  void Cancel() override { context_.TryCancel(); }
  bool Wait() override { return state_.WaitDone(); }

 private:
  void OnReadInitialMetadataDone(bool ok) override {
    if (!ok) return;
    hooks_.on_open();
    // Not before: gRPC may report a message and the initial metadata in either order.
    this->StartRead(&incoming_);
  }
  void OnReadDone(bool ok) override {
    if (!ok) return;
    state_.SetHeard();
    hooks_.on_message(std::move(incoming_));
    incoming_ = In();
    this->StartRead(&incoming_);
  }
  void OnDone(const grpc::Status& status) override {
    hooks_.on_closed(FromGrpc(status));
    state_.SetDone();
  }

  const Hooks& hooks_;  // the reader's, which outlives its connections
  grpc::ClientContext context_;
  ConnectionState state_;
  In incoming_;
};

template <typename In>
ReconnectingReader<In>::ReconnectingReader(Hooks hooks, Backoff backoff)
    : hooks_(std::move(hooks)), reconnector_(backoff, [this] {
        auto connection = std::make_shared<Connection>(hooks_);
        connection->Start();
        return connection;
      }) {}

}  // namespace lorry::rpc
