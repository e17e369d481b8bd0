// The words of the transfer tests: images, a handler that serves them, a server and a transport of
// one kind.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/mutex.h"
#include "lib/rpc/gate.h"
#include "lib/transfer/server.h"
#include "lib/transfer/ticket.h"
#include "lib/transfer/transport.h"

namespace lorry::transfer {

using Bytes = std::vector<std::byte>;
inline constexpr uint64_t kMiB = uint64_t{1} << 20;

// The same bytes for the same seed, everywhere; no two leaves alike.
Bytes MakeImage(uint64_t bytes, uint64_t seed = 1);

// Keys that tests and their peer processes share.
std::unique_ptr<TicketKeys> TestKeys();
TicketClaims ClaimsFor(Direction direction, const std::string& object, uint64_t image_bytes);
std::string TicketFor(const TicketKeys& keys, Direction direction, const std::string& object,
                      uint64_t image_bytes);

// Serves what it was given; objects that it does not know are NOT_FOUND.
class TestHandler final : public TransferHandler {
 public:
  void Serve(const std::string& object, Bytes image, bool with_leaves = true);
  // Of which only what is in `arrivals` is there.
  void ServePartly(const std::string& object, Bytes image,
                   std::shared_ptr<const ComingBytes> arrivals);
  void ServeWithLeaves(const std::string& object, Bytes image, std::vector<Checksum> leaves);
  // A fresh upload of `bytes`, all 0xEE at first.
  std::shared_ptr<PutTarget> Expect(const std::string& object, uint64_t bytes,
                                    std::function<absl::Status(const Range&)> on_range = {});
  const Bytes& Received(const std::string& object);
  // From now on opens are not answered, until AnswerLate does.
  void AnswerNothing() { silent_ = true; }
  void AnswerLate(const absl::Status& status);

  void OpenGet(const TicketClaims& claims, GetOpened done) override;
  void OpenPut(const TicketClaims& claims, PutOpened done) override;
  void OnFailed(const FailedSession& failed) override;
  // Why each session failed: its reason, or the name of its code.
  std::vector<std::string> failed();

 private:
  struct Upload {
    std::shared_ptr<Bytes> bytes;
    std::shared_ptr<PutTarget> target;
  };
  Mutex mutex_;
  std::map<std::string, GetSource> images_ LORRY_GUARDED_BY(mutex_);
  std::map<std::string, Upload> uploads_ LORRY_GUARDED_BY(mutex_);
  std::vector<GetOpened> unanswered_gets_ LORRY_GUARDED_BY(mutex_);
  std::vector<PutOpened> unanswered_puts_ LORRY_GUARDED_BY(mutex_);
  std::vector<std::string> failed_ LORRY_GUARDED_BY(mutex_);
  std::atomic<bool> silent_ = false;
};

// CHECKs that it starts.
// `gate`: who may call; without one everybody.
std::unique_ptr<TransferServer> StartServer(std::string_view kind, ServerLimits limits,
                                            const TicketKeys& keys, TransferHandler& handler,
                                            rpc::Gate* gate = nullptr);
// A server at which both are to be had, each with a handler of its own.
std::unique_ptr<TransferServer> StartBoth(const TicketKeys& keys, TransferHandler& by_ucx,
                                          TransferHandler& by_grpc);
std::unique_ptr<Transport> CreateTransport(std::string_view kind);

// True as soon as `condition` is; false after ten seconds.
bool Eventually(const std::function<bool()>& condition);

// A transfer in the background, whose outcome is awaited.
class Running {
 public:
  Running(Transport& transport, FetchRequest request, OnRange on_range = {});
  Running(Transport& transport, PushRequest request, OnRange on_range = {});
  void Cancel() { transfer_->Cancel(); }
  Outcome Wait() { return outcome_.get(); }
  bool ended() const {
    return outcome_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  }

 private:
  OnDone Promise();
  std::shared_ptr<std::promise<Outcome>> promise_ = std::make_shared<std::promise<Outcome>>();
  std::future<Outcome> outcome_ = promise_->get_future();
  std::shared_ptr<Transfer> transfer_;
};

// A server and a transport of one kind, in this process.
class World {
 public:
  explicit World(std::string_view kind, ServerLimits limits = {})
      : keys(TestKeys()),
        server(StartServer(kind, limits, *keys, handler)),
        transport(CreateTransport(kind)) {}

  FetchRequest FetchOf(const std::string& object, Bytes& into) {
    return {.address = server->address(),
            .ticket = TicketFor(*keys, Direction::kGet, object, into.size()),
            .destination = into};
  }
  PushRequest PushOf(const std::string& object, const Bytes& from) {
    return {.address = server->address(),
            .ticket = TicketFor(*keys, Direction::kPut, object, from.size()),
            .source = from};
  }

  std::unique_ptr<TicketKeys> keys;
  TestHandler handler;
  std::unique_ptr<TransferServer> server;
  std::unique_ptr<Transport> transport;
};

}  // namespace lorry::transfer
