// Client side of long streams: dials again, with backoff and jitter, until stopped.
//
//   rpc::ReconnectingStream<AttachRequest, AttachResponse> attach(
//       {.start = [&](auto* context, auto* reactor) { stub->async()->Attach(context, reactor); },
//        .hello = [&] { return MakeHello(); },
//        .on_open = [&] { driver.PostAnswer(SessionOpened{}); },
//        .on_message = [&](AttachResponse message) { driver.PostAnswer(...); },
//        .on_closed = [&](absl::Status why) { driver.PostAnswer(SessionLost{...}); }});
//   attach.Start();  attach.Send(observed);  attach.Stop();
//
// Each connection begins with hello's message; what waited when one broke is dropped, because
// on_open makes its owner send the whole state again. on_closed follows every try, opened or not.
// The callbacks run on gRPC's threads, one at a time, and must only enqueue; none runs after Stop
// has returned.
#pragma once

#include <grpcpp/client_context.h>
#include <grpcpp/support/client_callback.h>

#include <functional>
#include <memory>
#include <thread>

#include "absl/status/status.h"
#include "lib/base/mutex.h"
#include "lib/rpc/outbox.h"
#include "lib/rpc/reconnector.h"
#include "lib/rpc/status.h"

namespace lorry::rpc {

template <typename Out, typename In>
class ReconnectingStream {
 public:
  using Reactor = grpc::ClientBidiReactor<Out, In>;
  struct Hooks {
    std::function<void(grpc::ClientContext*, Reactor*)> start;
    std::function<Out()> hello;
    std::function<void()> on_open = [] {};
    std::function<void(In)> on_message;
    std::function<void(absl::Status)> on_closed = [](const absl::Status&) {};
  };
  explicit ReconnectingStream(Hooks hooks, Backoff backoff = {}, size_t fifo_max = kLatestWins);
  ~ReconnectingStream() { Stop(); }

  void Start() { reconnector_.Start(); }
  void Stop() { reconnector_.Stop(); }
  // False while no stream is open (the message is dropped) or a FIFO is full.
  bool Send(Out message);
  // Ends the current connection; the next try follows after the shortest backoff.
  void Redial() { reconnector_.Redial(); }
  // The same for an owner that could not take what it heard (Reconnector).
  void RedialInVain() { reconnector_.RedialInVain(); }
  // The current connection is the last one: for a client that has said all it had to say.
  void Finish() { reconnector_.Finish(); }

 private:
  class Connection;
  const Hooks hooks_;
  const size_t fifo_max_;
  Mutex mutex_;
  std::shared_ptr<Connection> current_ LORRY_GUARDED_BY(mutex_);
  Reconnector reconnector_;
};

// One direction: the store's Watch. `start` names where to go on from, each time anew.
template <typename In>
class ReconnectingReader {
 public:
  using Reactor = grpc::ClientReadReactor<In>;
  struct Hooks {
    // Keeps the request alive until on_closed.
    std::function<void(grpc::ClientContext*, Reactor*)> start;
    std::function<void()> on_open = [] {};
    std::function<void(In)> on_message;
    std::function<void(absl::Status)> on_closed = [](const absl::Status&) {};
  };
  explicit ReconnectingReader(Hooks hooks, Backoff backoff = {});
  ~ReconnectingReader() { Stop(); }

  void Start() { reconnector_.Start(); }
  void Stop() { reconnector_.Stop(); }
  void Redial() { reconnector_.Redial(); }
  void RedialInVain() { reconnector_.RedialInVain(); }

 private:
  class Connection;
  const Hooks hooks_;
  Reconnector reconnector_;
};

}  // namespace lorry::rpc

#include "lib/rpc/reconnecting_stream_impl.h"
