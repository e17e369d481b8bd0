// A server with one service of each kind, for tests: what its handlers and streams do is set by the
// test.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "echo.grpc.pb.h"
#include "lib/rpc/channel.h"
#include "lib/rpc/gate.h"
#include "lib/rpc/server.h"
#include "lib/rpc/stream.h"

namespace lorry::rpc {

namespace echo = lorry::test::v1;

// Collects values from other threads; WaitFor blocks until they satisfy a condition (or the test's
// own timeout).
template <typename Value>
class Collected {
 public:
  void Add(Value value) {
    std::lock_guard lock(mutex_);
    values_.push_back(std::move(value));
    changed_.notify_all();
  }
  std::vector<Value> WaitFor(const std::function<bool(const std::vector<Value>&)>& enough) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(30), [&] { return enough(values_); });
    return values_;
  }
  std::vector<Value> WaitForCount(size_t count) {
    return WaitFor([count](const auto& values) { return values.size() >= count; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Value> values_;
};

class EchoSession final : public BidiStream<echo::EchoRequest, echo::EchoResponse> {
 public:
  EchoSession(Collected<std::string>& said, Collected<absl::Status>& closed)
      : said_(said), closed_(closed) {}

 private:
  // "close" ends the stream, "silent..." is only noted, anything else is answered.
  void OnMessage(echo::EchoRequest message) override {
    said_.Add(message.text());
    if (message.text() == "close")
      return Close(Error(absl::StatusCode::kFailedPrecondition, "TERM_FENCED", "as asked"));
    if (message.text().starts_with("silent")) return;
    echo::EchoResponse reply;
    reply.set_text(message.text());
    Send(std::move(reply));
  }
  void OnClosed(const absl::Status& why) override { closed_.Add(why); }

  Collected<std::string>& said_;
  Collected<absl::Status>& closed_;
};

class WatchSession final : public WriteStream<echo::EchoResponse> {
 public:
  WatchSession(size_t fifo_max, Collected<absl::Status>& closed)
      : WriteStream(fifo_max), closed_(closed) {}

 private:
  void OnClosed(const absl::Status& why) override { closed_.Add(why); }
  Collected<absl::Status>& closed_;
};

class EchoService final
    : public echo::EchoService::WithCallbackMethod_Attach<
          echo::EchoService::WithCallbackMethod_Watch<echo::EchoService::Service>> {
 public:
  explicit EchoService(Gate& gate) : gate_(gate) {}

  std::function<absl::Status(const Call&)> handler = [](const Call&) { return absl::OkStatus(); };
  Effort effort = Effort::kWorks;  // what `handler` does
  std::string adapter;             // that Echo concerns
  size_t watch_fifo_max = 100;
  Collected<std::shared_ptr<EchoSession>> sessions;
  Collected<std::shared_ptr<WatchSession>> watches;
  Collected<std::string> said;
  Collected<absl::Status> closed;

  grpc::Status Echo(grpc::ServerContext* context, const echo::EchoRequest* request,
                    echo::EchoResponse* response) override {
    const auto serve = [&](const Call& call) {
      response->set_text(request->text());
      return handler(call);
    };
    return gate_.Serve(*context, "Echo", Role::kPublisher, serve,
                       {.adapter = adapter, .effort = effort});
  }
  grpc::ServerBidiReactor<echo::EchoRequest, echo::EchoResponse>* Attach(
      grpc::CallbackServerContext* context) override {
    auto session = std::make_shared<EchoSession>(said, closed);
    auto* reactor = StartStream(gate_, *context, Role::kEngine, session);
    sessions.Add(std::move(session));
    return reactor;
  }
  grpc::ServerWriteReactor<echo::EchoResponse>* Watch(grpc::CallbackServerContext* context,
                                                      const echo::EchoRequest*) override {
    auto session = std::make_shared<WatchSession>(watch_fifo_max, closed);
    auto* reactor = StartStream(gate_, *context, Role::kReader, session);
    watches.Add(std::move(session));
    return reactor;
  }

 private:
  Gate& gate_;
};

// Everything in one: open access unless a tokens file is given.
struct EchoServer {
  explicit EchoServer(ServerOptions options = {}, Gate::Options limits = {},
                      std::string tokens = {})
      : access(*Access::Open(std::move(tokens), !options.tls.client_ca.empty())),
        gate(*access, std::move(limits)),
        service(gate) {
    auto started = Server::Start(std::move(options), gate, {&service});
    if (!started.ok()) std::fprintf(stderr, "%s\n", started.status().ToString().c_str());
    server = *std::move(started);
    server->SetServing(true);
  }
  std::unique_ptr<echo::EchoService::Stub> Stub(ChannelOptions options = {}) const {
    if (options.target.empty()) options.target = server->address();
    return echo::EchoService::NewStub(*MakeChannel(options));
  }

  std::unique_ptr<Access> access;
  Gate gate;
  EchoService service;
  std::unique_ptr<Server> server;
};

inline absl::Status Say(echo::EchoService::Stub& stub, const std::string& text) {
  grpc::ClientContext context;
  SetDeadlineIn(context, 20'000);
  echo::EchoRequest request;
  request.set_text(text);
  echo::EchoResponse response;
  return FromGrpc(stub.Echo(&context, request, &response));
}

}  // namespace lorry::rpc
