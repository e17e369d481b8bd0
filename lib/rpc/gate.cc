#include "lib/rpc/gate.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "lib/base/error.h"
#include "lib/base/strings.h"
#include "lib/rpc/status.h"

namespace lorry::rpc {

absl::Status ShuttingDown() {
  return Error(absl::StatusCode::kUnavailable, "SHUTTING_DOWN",
               "this server is shutting down; dial again");
}

Gate::Gate(Access& access, Options options) : access_(access), options_(std::move(options)) {}

grpc::Status Gate::Serve(grpc::ServerContext& context, std::string_view method, Roles wanted,
                         absl::FunctionRef<absl::Status(const Call&)> handler, const Terms& terms) {
  const auto began = std::chrono::steady_clock::now();
  const absl::StatusOr<Call> call = Admit(context, method, wanted, terms);
  const absl::Status status = call.ok() ? handler(*call) : call.status();
  if (options_.on_call) {
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    options_.on_call({.method = method, .code = status.code(), .seconds = took.count()});
  }
  // Last: whoever waits until all have left may then destroy the gate.
  if (call.ok()) Leave(method, terms.effort);
  return ToGrpc(status);
}

absl::Status Gate::Greet(const Access::Metadata& metadata, const grpc::AuthContext& connection) {
  const absl::Status known = access_.Identify(metadata, connection).status();
  if (!known.ok() && options_.on_call) {
    // A stranger's method names are no labels: there is no end to them.
    options_.on_call({.method = "any", .code = known.code(), .seconds = 0});
  }
  return known;
}

absl::StatusOr<Caller> Gate::AdmitStream(const grpc::ServerContextBase& context, Roles wanted,
                                         std::string_view adapter) {
  {
    MutexLock lock(mutex_);
    if (closed_) return ShuttingDown();
  }
  return access_.Check(context, wanted, adapter);
}

absl::StatusOr<Call> Gate::Admit(grpc::ServerContext& context, std::string_view method,
                                 Roles wanted, const Terms& terms) {
  Call call;
  LORRY_ASSIGN_OR_RETURN(call.caller, access_.Check(context, wanted, terms.adapter));
  call.deadline = DeadlineOf(context);
  MutexLock lock(mutex_);
  if (closed_) return ShuttingDown();
  if (terms.effort == Effort::kWorks && working_ < options_.calls_max) {
    ++working_;
  } else {
    if (waiting_ >= options_.waiting_max) {
      return Error(absl::StatusCode::kResourceExhausted, "SERVER_BUSY",
                   absl::StrCat(waiting_, " calls already wait at this server; try again shortly"));
    }
    ++waiting_;
    if (terms.effort == Effort::kWorks) LORRY_RETURN_IF_ERROR(AwaitTurn(call.deadline));
  }
  const auto it = by_method_.find(method);
  ++(it != by_method_.end() ? it : by_method_.emplace(std::string(method), 0).first)->second;
  return call;
}

// Ends the wait of a call that is to work, and counts it as working when it returns OK.
absl::Status Gate::AwaitTurn(Tick deadline) {
  while (!closed_ && working_ >= options_.calls_max && clock_.Now() < deadline) {
    turn_.wait_for(mutex_, std::chrono::milliseconds(deadline - clock_.Now()));
  }
  --waiting_;
  if (closed_) return ShuttingDown();
  if (working_ >= options_.calls_max) {
    return Error(absl::StatusCode::kResourceExhausted, "SERVER_BUSY",
                 absl::StrCat("this server works on ", working_,
                              " calls and had no room for this one before its deadline; try again "
                              "shortly"));
  }
  ++working_;
  return absl::OkStatus();
}

Tick Gate::DeadlineOf(const grpc::ServerContext& context) const {
  const Tick now = clock_.Now();
  const auto deadline = context.deadline();
  if (deadline == std::chrono::system_clock::time_point::max()) {
    return now + options_.deadline_default_ms;
  }
  const int64_t left = std::chrono::duration_cast<std::chrono::milliseconds>(
                           deadline - std::chrono::system_clock::now())
                           .count();
  return now + std::min(left, options_.deadline_max_ms);
}

void Gate::Leave(std::string_view method, Effort effort) {
  MutexLock lock(mutex_);
  --(effort == Effort::kWorks ? working_ : waiting_);
  if (effort == Effort::kWorks) turn_.notify_one();
  const auto it = by_method_.find(method);
  if (--it->second == 0) by_method_.erase(it);
  if (by_method_.empty()) idle_.notify_all();
}

void Gate::Close() {
  MutexLock lock(mutex_);
  closed_ = true;
  turn_.notify_all();
}

std::map<std::string, int> Gate::WaitIdle(Tick deadline) {
  MutexLock lock(mutex_);
  const auto until =
      std::chrono::steady_clock::now() + std::chrono::milliseconds(deadline - clock_.Now());
  while (!by_method_.empty() && idle_.wait_until(mutex_, until) != std::cv_status::timeout) {
  }
  return {by_method_.begin(), by_method_.end()};
}

}  // namespace lorry::rpc
