// Many sessions with one orchestrator, in one process: each attaches as a proxy does, and does what
// it is told after a while, without an engine; what a barrier asks it does at once, and writes LOCKED
// and the row that follows to the disk first, as a proxy does. Prints a line "EPOCH MILLISECONDS" for
// each barrier of each session: for how long its door admitted nothing. Ends with SIGTERM.
//   session_crowd ORCHESTRATOR FIRST COUNT FOLDER
#include <fcntl.h>
#include <grpcpp/support/client_callback.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/thread_pool.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
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
namespace asio = boost::asio;
namespace {

// Below what a connection may carry; a proxy has one of its own.
constexpr size_t kSessionsAConnection = 50;
// That write to the disk at once: each proxy has a thread for that of its own.
constexpr int kWriters = 16;
// Reports and documents that wait for the loop: every session may have a few.
constexpr size_t kTasksMax = 100'000;

using Clock = std::chrono::steady_clock;

class Session final : public grpc::ClientBidiReactor<v1::AttachRequest, v1::AttachResponse> {
 public:
  Session(std::shared_ptr<grpc::Channel> channel, runtime::Loop& loop, asio::thread_pool& writers,
          const std::string& folder, const std::string& member, uint64_t seed)
      : stub_(v1::SyncService::NewStub(std::move(channel))),
        loop_(loop),
        writers_(writers),
        file_(::open((folder + "/" + member).c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600)),
        prng_(seed) {
    LORRY_CHECK(file_ >= 0);
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
    ::close(file_);
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

  // On the loop. Fetching, loading and flipping a row take a while each, but for a barrier's.
  void Work() {
    fleet::Observed next = observed_;
    if (busy_ || !StepTowards(desired_, next)) return;
    busy_ = true;
    if (MeetsBarrier()) return WriteDown([this] { Step(); });
    loop_.After(20 + static_cast<int64_t>(prng_.Below(80)), [this] { Step(); });
  }
  void Step() {
    busy_ = false;
    const bool was_shut = IsAnyShut();
    if (!StepTowards(desired_, observed_)) return;
    if (!was_shut && IsAnyShut()) shut_at_ = Clock::now();
    if (was_shut && !IsAnyShut()) {
      const std::chrono::duration<double, std::milli> shut = Clock::now() - shut_at_;
      std::printf("%llu %.3f\n",
                  static_cast<unsigned long long>(observed_.rows.front().epoch.value),
                  shut.count());
      std::fflush(stdout);
    }
    v1::AttachRequest message;
    *message.mutable_observed() = rpc::ToProto(observed_);
    Send(std::move(message));
    Work();
  }
  bool IsAnyShut() const {
    return std::ranges::any_of(observed_.rows, [](const auto& row) { return IsShut(row.mode); });
  }
  bool MeetsBarrier() const {
    return IsAnyShut() ||
           std::ranges::any_of(desired_.rows, [](const auto& row) { return IsShut(row.mode); });
  }
  // HELD is not written down: what stands on it is gone with the process.
  void WriteDown(std::function<void()> then) {
    const bool holds = std::ranges::any_of(
        desired_.rows, [](const auto& row) { return row.mode == fleet::RowMode::kHeld; });
    if (holds) return then();
    asio::post(writers_, [this, then = std::move(then)] {
      const std::string row(500, 'x');
      LORRY_CHECK(::pwrite(file_, row.data(), row.size(), 0) == static_cast<ssize_t>(row.size()));
      LORRY_CHECK(::fsync(file_) == 0);
      (void)loop_.Post(then);
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
  asio::thread_pool& writers_;
  const int file_;
  grpc::ClientContext context_;
  v1::AttachResponse incoming_;
  v1::AttachRequest outgoing_;
  // The loop's.
  Prng prng_;
  fleet::Observed observed_;
  fleet::Desired desired_;
  bool busy_ = false;
  Clock::time_point shut_at_;
  Mutex mutex_;
  CondVar ended_;
  rpc::Outbox<v1::AttachRequest> outbox_ LORRY_GUARDED_BY(mutex_);
  bool writing_ LORRY_GUARDED_BY(mutex_) = false;
  bool done_ LORRY_GUARDED_BY(mutex_) = false;
};

}  // namespace
}  // namespace lorry::sync

int main(int argc, char** argv) {
  LORRY_CHECK(argc == 5);
  lorry::runtime::Signals signals;
  lorry::runtime::Loop loop("crowd", lorry::sync::kTasksMax);
  const size_t first = std::strtoul(argv[2], nullptr, 10);
  const size_t count = std::strtoul(argv[3], nullptr, 10);
  boost::asio::thread_pool writers(lorry::sync::kWriters);
  std::vector<std::unique_ptr<lorry::sync::Session>> sessions;
  std::shared_ptr<grpc::Channel> channel;
  for (size_t i = 0; i < count; ++i) {
    if (i % lorry::sync::kSessionsAConnection == 0)
      channel = *lorry::rpc::MakeChannel({.target = argv[1], .own_connection = true});
    sessions.push_back(std::make_unique<lorry::sync::Session>(
        channel, loop, writers, argv[4], absl::StrCat("engine-", 100'000 + first + i), first + i));
  }
  signals.Wait();
  writers.join();
  loop.Stop();
  sessions.clear();
  return 0;
}
