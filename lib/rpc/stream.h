// Server side of long streams: subclasses say what a message means, the plumbing is here.
//
//   class AttachSession final : public rpc::BidiStream<AttachRequest, AttachResponse> {
//     void OnMessage(AttachRequest message) override { driver_.Post(...); }
//     void OnClosed(const absl::Status& why) override { driver_.PostAnswer(SessionLost{...}); }
//   };
//   grpc::ServerBidiReactor<AttachRequest, AttachResponse>* Attach(
//       grpc::CallbackServerContext* context) override {
//     return rpc::StartStream(gate_, *context, rpc::Role::kEngine,
//                             std::make_shared<AttachSession>(...));
//   }
//
// Threads: Send, Close and Cancel from any; the On... functions run on gRPC's few threads and must
// only enqueue. Lifetime: gRPC holds the stream by a shared_ptr until OnClosed has returned; others
// may keep one, and Send then returns false. OnClosed is called exactly once, for admitted streams
// only, and nothing is called after it.
#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "lib/base/clock.h"
#include "lib/base/error.h"
#include "lib/base/mutex.h"
#include "lib/rpc/gate.h"
#include "lib/rpc/outbox.h"
#include "lib/rpc/status.h"

namespace lorry::rpc {

// The writing half, shared by both kinds. `Reactor` is gRPC's class.
template <typename Reactor, typename Out>
class StreamWriter : public Reactor, public OpenStream {
 public:
  explicit StreamWriter(size_t fifo_max) : outbox_(fifo_max) {}

  // False: the stream is ending, or its FIFO is full; a full FIFO also ends it (RESOURCE_EXHAUSTED
  // STREAM_TOO_SLOW).
  bool Send(Out message);
  void Close(absl::Status status) override;
  void Cancel(absl::Status status) override;
  int64_t WriteStalledMs(Tick now) const override;
  const Caller& caller() const { return caller_; }

 protected:
  // The stream is admitted and the client knows it. Send works from here on.
  virtual void OnOpen() {}
  virtual void OnClosed(const absl::Status& why) = 0;
  virtual void BeginReading() {}
  // Runs `start` unless the stream has finished: gRPC wants no read after Finish.
  template <typename Start>
  void ReadAgain(Start start) {
    MutexLock lock(mutex_);
    if (!finished_) start();
  }

 private:
  template <typename Stream>
  friend Stream* StartStream(Gate& gate, grpc::CallbackServerContext& context, Roles wanted,
                             std::shared_ptr<Stream> stream, std::string_view adapter);
  void Begin(Gate& gate, grpc::CallbackServerContext& context, Roles wanted,
             std::shared_ptr<StreamWriter> self, std::string_view adapter);
  void StartNextWrite() LORRY_REQUIRES(mutex_);
  void FinishIfIdle() LORRY_REQUIRES(mutex_);
  void OnSendInitialMetadataDone(bool) final {}
  void OnWriteDone(bool ok) final;
  void OnCancel() final { Close(absl::CancelledError("the peer left")); }
  void OnDone() final;

  mutable Mutex mutex_;
  Outbox<Out> outbox_ LORRY_GUARDED_BY(mutex_);
  Out in_flight_;  // gRPC reads it while `writing_`
  bool writing_ LORRY_GUARDED_BY(mutex_) = false;
  bool closing_ LORRY_GUARDED_BY(mutex_) = false;
  bool finished_ LORRY_GUARDED_BY(mutex_) = false;
  bool done_ LORRY_GUARDED_BY(mutex_) = false;
  Tick write_began_ LORRY_GUARDED_BY(mutex_) = 0;
  absl::Status why_ LORRY_GUARDED_BY(mutex_);
  // Constant after Begin.
  Caller caller_;
  grpc::CallbackServerContext* context_ = nullptr;  // gRPC's, valid until OnDone
  StreamRegistry* registry_ = nullptr;              // the gate's; null when not admitted
  std::shared_ptr<StreamWriter> self_;              // what keeps the stream alive for gRPC
};

// One direction: Watch, WatchSync.
template <typename Out>
class WriteStream : public StreamWriter<grpc::ServerWriteReactor<Out>, Out> {
 public:
  explicit WriteStream(size_t fifo_max)
      : StreamWriter<grpc::ServerWriteReactor<Out>, Out>(fifo_max) {}
};

// Both directions: Attach. Reading stops only with the stream; a client that half-closes ends it
// with OK.
template <typename In, typename Out>
class BidiStream : public StreamWriter<grpc::ServerBidiReactor<In, Out>, Out> {
 public:
  explicit BidiStream(size_t fifo_max = kLatestWins)
      : StreamWriter<grpc::ServerBidiReactor<In, Out>, Out>(fifo_max) {}

 protected:
  virtual void OnMessage(In message) = 0;

 private:
  void BeginReading() final {
    this->ReadAgain([this] { this->StartRead(&incoming_); });
  }
  void OnReadDone(bool ok) final;
  In incoming_;
};

// Admits `stream`, which concerns `adapter` (as in Terms), and hands it to gRPC; a refused one ends
// with the gate's status.
template <typename Stream>
Stream* StartStream(Gate& gate, grpc::CallbackServerContext& context, Roles wanted,
                    std::shared_ptr<Stream> stream, std::string_view adapter) {
  Stream* const reactor = stream.get();
  reactor->Begin(gate, context, wanted, std::move(stream), adapter);
  return reactor;
}
// One that concerns every adapter.
template <typename Stream>
Stream* StartStream(Gate& gate, grpc::CallbackServerContext& context, Roles wanted,
                    std::shared_ptr<Stream> stream) {
  return StartStream(gate, context, wanted, std::move(stream), /*adapter=*/"");
}

}  // namespace lorry::rpc

#include "lib/rpc/stream_impl.h"
