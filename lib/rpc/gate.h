// The gate that every call passes: who calls, until when, how many at once, and no longer when the
// server leaves.
//
// A handler is parse, validate, call, convert:
//
//   grpc::Status OpenRun(grpc::ServerContext* context, const OpenRunRequest* request,
//                        OpenRunResponse* response) override {
//     return gate_.Serve(*context, "OpenRun", rpc::Role::kPublisher,
//                        [&](const rpc::Call& call) { return catalog_.OpenRun(...); });
//   }
//
// Unary calls are served synchronously, one thread each. At most `calls_max` of them work at once;
// what comes beyond that waits for its turn, and calls that only wait for something that is done
// elsewhere need no turn. Long streams are BidiStream and WriteStream (lib/rpc/stream.h), which
// pass the same gate. Thread-safe; outlives the server that it guards.
#pragma once

#include <grpcpp/server_context.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "lib/base/clock.h"
#include "lib/base/mutex.h"
#include "lib/rpc/access.h"
#include "lib/rpc/stream_registry.h"

namespace lorry::rpc {

struct Call {
  Caller caller;
  Tick deadline;  // on SteadyClock; pass what is left of it to whatever the handler calls
};

// UNAVAILABLE SHUTTING_DOWN.
absl::Status ShuttingDown();

// What a handler does with its time: it works, or it waits, as every rank's commit waits for the
// one check of their image.
enum class Effort { kWorks, kWaits };

// What else is to be known of a call before it is served.
struct Terms {
  // The one that it concerns; kOfCaller; or empty: all of them, which a caller that is limited to
  // some is refused.
  std::string_view adapter = {};
  Effort effort = Effort::kWorks;
};

struct CallReport {
  std::string_view method;
  absl::StatusCode code;
  double seconds;
};

class Gate {
 public:
  struct Options {
    // A control call that takes longer than this is stuck: the longest legitimate one syncs a large
    // image.
    int64_t deadline_max_ms = 120'000;
    // What a call without a deadline gets.
    int64_t deadline_default_ms = 30'000;
    // Handlers that work at once: more would only contend for the disk and the processors.
    int calls_max = 64;
    // Calls that wait, for their turn or elsewhere. Each holds a thread of some 20 KiB: the ranks
    // of two of the largest training jobs.
    int waiting_max = 2'048;
    // Told of each finished unary call, and with the method "any" of each call that ended before
    // it was known whether its method exists; the service turns it into metrics. Must not block.
    std::function<void(const CallReport&)> on_call = {};
  };
  explicit Gate(Access& access) : Gate(access, Options{}) {}
  Gate(Access& access, Options options);

  // Serves one unary call: admits it, runs `handler` on this thread, converts the status.
  // RESOURCE_EXHAUSTED SERVER_BUSY: as many calls wait as may, or its turn did not come in time.
  grpc::Status Serve(grpc::ServerContext& context, std::string_view method, Roles wanted,
                     absl::FunctionRef<absl::Status(const Call&)> handler, const Terms& terms = {});

  // Admits a long stream; it has no deadline. `adapter`: as in Terms.
  absl::StatusOr<Caller> AdmitStream(const grpc::ServerContextBase& context, Roles wanted,
                                     std::string_view adapter = {});

  // Whether anybody that is known makes the call, as far as its headers tell: asked by the server
  // before it reads a message of the call.
  absl::Status Greet(const Access::Metadata& metadata, const grpc::AuthContext& connection);

  StreamRegistry& streams() { return streams_; }
  bool open_to_all() const { return access_.open_to_all(); }

  // From now on every call is refused with UNAVAILABLE SHUTTING_DOWN.
  void Close();
  // Waits until no unary call is left, at most until `deadline`; returns how many are, by method.
  std::map<std::string, int> WaitIdle(Tick deadline);

 private:
  absl::StatusOr<Call> Admit(grpc::ServerContext& context, std::string_view method, Roles wanted,
                             const Terms& terms);
  absl::Status AwaitTurn(Tick deadline) LORRY_REQUIRES(mutex_);
  Tick DeadlineOf(const grpc::ServerContext& context) const;
  void Leave(std::string_view method, Effort effort);

  Access& access_;  // outlives the gate
  const Options options_;
  SteadyClock clock_;
  StreamRegistry streams_;
  Mutex mutex_;
  CondVar idle_;
  CondVar turn_;
  bool closed_ LORRY_GUARDED_BY(mutex_) = false;
  int working_ LORRY_GUARDED_BY(mutex_) = 0;
  int waiting_ LORRY_GUARDED_BY(mutex_) = 0;
  // All that were admitted and have not left.
  std::map<std::string, int, std::less<>> by_method_ LORRY_GUARDED_BY(mutex_);
};

}  // namespace lorry::rpc
