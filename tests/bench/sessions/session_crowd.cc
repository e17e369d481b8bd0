// Many sessions with one orchestrator, in one process: each attaches as a proxy does, and does what
// it is told after a while, without an engine. Prints "attached" once all have; ends with SIGTERM.
//   session_crowd ORCHESTRATOR FIRST COUNT
#include <grpcpp/support/client_callback.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/base/check.h"
#include "lib/base/mutex.h"
#include "lib/base/prng.h"
#include "lib/rpc/channel.h"
#include "lib/rpc/fleet_messages.h"
#include "lib/rpc/outbox.h"
#include "lib/runtime/loop.h"
#include "lib/runtime/signals.h"
#include "lorry/sync/v1/sync.grpc.pb.h"
#include "tests/bench/machine/obey.h"

namespace lorry::sync {
namespace {

// Below what a connection may carry; a proxy has one of its own.
constexpr size_t kSessionsAConnection = 50;
// Reports and documents that wait for the loop: every session may have a few.
constexpr size_t kTasksMax = 100'000;

class Session final : public grpc::ClientBidiReactor<v1::AttachRequest, v1::AttachResponse> {
 public:
  Session(std::shared_ptr<grpc::Channel> channel, runtime::Loop& loop, const std::string& member,
          uint64_t seed)
      : stub_(v1::SyncService::NewStub(std::move(channel))), loop_(loop), prng_(seed) {
    observed_.journal = JournalId("journal");
    observed_.boot = BootId("boot");
    observed_.health = fleet::MemberHealth::kReady;
    observed_.limits = {.kind = fleet::EngineKind::kVllm, .rank_limit = 64, .slots = 64};
    observed_.engine_version = "0.11.0";
    observed_.sequence = 1;
    v1::AttachRequest hello;
    hello.mutable_hello()->set_member(member);
    hello.mutable_hello()->set_pool("rollout");
    *hello.mutable_hello()->mutable_observed() = rpc::ToProto(observed_);
    context_.set_wait_for_ready(true);  // a thousand dial at once, beside whatever else runs
    stub_->async()->Attach(&context_, this);
    Send(std::move(hello));
    StartRead(&incoming_);
    StartCall();
  }
  ~Session() override {
    context_.TryCancel();
    MutexLock lock(mutex_);
    while (!done_) ended_.wait(mutex_);
  }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) return;
    absl::StatusOr<fleet::Desired> desired = rpc::FromProto(incoming_.desired());
    LORRY_CHECK(desired.ok());
    (void)loop_.Post([this, desired = *std::move(desired)]() mutable {
      desired_ = std::move(desired);
      Work();
    });
    StartRead(&incoming_);
  }
  void OnWriteDone(bool ok) override {
    MutexLock lock(mutex_);
    writing_ = false;
    if (ok) Write();
  }
  void OnDone(const grpc::Status& status) override {
    if (status.error_code() != grpc::StatusCode::CANCELLED)
      std::fprintf(stderr, "a session ended: %s\n", status.error_message().c_str());
    MutexLock lock(mutex_);
    done_ = true;
    ended_.notify_all();
  }

  // On the loop. Fetching, loading and flipping a row take a while each.
  void Work() {
    if (std::exchange(busy_, true)) return;
    loop_.After(20 + static_cast<int64_t>(prng_.Below(80)), [this] {
      busy_ = false;
      if (!StepTowards(desired_, observed_)) return;
      v1::AttachRequest message;
      *message.mutable_observed() = rpc::ToProto(observed_);
      Send(std::move(message));
      Work();
    });
  }
  void Send(v1::AttachRequest message) {
    MutexLock lock(mutex_);
    (void)outbox_.Put(std::move(message));
    if (!writing_) Write();
  }
  void Write() LORRY_REQUIRES(mutex_) {
    std::optional<v1::AttachRequest> next = outbox_.Take();
    if (!next.has_value()) return;
    outgoing_ = *std::move(next);
    writing_ = true;
    StartWrite(&outgoing_);
  }

  const std::unique_ptr<v1::SyncService::Stub> stub_;
  runtime::Loop& loop_;
  grpc::ClientContext context_;
  v1::AttachResponse incoming_;
  v1::AttachRequest outgoing_;
  // The loop's.
  Prng prng_;
  fleet::Observed observed_;
  fleet::Desired desired_;
  bool busy_ = false;
  Mutex mutex_;
  CondVar ended_;
  rpc::Outbox<v1::AttachRequest> outbox_ LORRY_GUARDED_BY(mutex_);
  bool writing_ LORRY_GUARDED_BY(mutex_) = false;
  bool done_ LORRY_GUARDED_BY(mutex_) = false;
};

}  // namespace
}  // namespace lorry::sync

int main(int argc, char** argv) {
  LORRY_CHECK(argc == 4);
  lorry::runtime::Signals signals;
  lorry::runtime::Loop loop("crowd", lorry::sync::kTasksMax);
  const size_t first = std::strtoul(argv[2], nullptr, 10);
  const size_t count = std::strtoul(argv[3], nullptr, 10);
  std::vector<std::unique_ptr<lorry::sync::Session>> sessions;
  std::shared_ptr<grpc::Channel> channel;
  for (size_t i = 0; i < count; ++i) {
    if (i % lorry::sync::kSessionsAConnection == 0)
      channel = *lorry::rpc::MakeChannel({.target = argv[1], .own_connection = true});
    sessions.push_back(std::make_unique<lorry::sync::Session>(
        channel, loop, absl::StrCat("engine-", 100'000 + first + i), first + i));
  }
  signals.Wait();
  loop.Stop();
  sessions.clear();
  return 0;
}
