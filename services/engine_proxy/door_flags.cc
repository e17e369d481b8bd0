#include "services/engine_proxy/door_flags.h"

#include <cstdint>
#include <string>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "lib/base/error.h"

namespace {
constexpr lorry::door::DoorLimits kDefaults;
}  // namespace

ABSL_FLAG(uint64_t, door_head_bytes, kDefaults.head.bytes, "most bytes of a request's head");
ABSL_FLAG(uint64_t, door_body_bytes, kDefaults.body_bytes, "most bytes of a request's body");
ABSL_FLAG(uint64_t, door_all_bodies_bytes, kDefaults.all_bodies_bytes,
          "most bytes of all bodies that the engine has not answered yet, and of replies that the "
          "door holds");
ABSL_FLAG(uint64_t, door_tensors_bytes, kDefaults.tensors_bytes,
          "most bytes of a call that carries an adapter's tensors, and of all such calls together; "
          "one that finds no room waits. The proxy needs four times as much");
ABSL_FLAG(
    uint64_t, door_split_reply_bytes, kDefaults.split_reply_bytes,
    "most bytes of one reply of n, where the door splits n > 1, and of one that may go on under "
    "another version; a larger one is answered by 400 REPLY_TOO_LARGE");
ABSL_FLAG(uint32_t, door_connections, kDefaults.connections,
          "most clients' connections; no more than half of the descriptors that the process may "
          "have");
ABSL_FLAG(uint32_t, door_live_requests, kDefaults.live_requests,
          "most requests at the engine at once, of which one that is split into n counts as n, and "
          "which one request alone may exceed; no more than half of the descriptors that the "
          "process may have");
ABSL_FLAG(uint32_t, door_held_requests, kDefaults.held_requests,
          "most requests that wait for a sync to end");
ABSL_FLAG(uint32_t, door_calls, kDefaults.calls,
          "most calls of frameworks that wait for their answers");
ABSL_FLAG(int64_t, door_call_ms, kDefaults.call_ms,
          "a framework's call is given up (504 CALL_TIMEOUT) after so long; more than "
          "--framework-pause-deadline-ms");
ABSL_FLAG(int64_t, door_head_ms, kDefaults.head_ms,
          "a client must have sent a request's head after so long");
ABSL_FLAG(int64_t, door_body_ms, kDefaults.body_ms,
          "a client that sends nothing of its request's body for so long is left; beyond that an "
          "adapter's tensors must come at 1 MiB a second");
ABSL_FLAG(int64_t, door_keep_alive_ms, kDefaults.keep_alive_ms,
          "a connection without a request is closed after so long");
ABSL_FLAG(int64_t, door_client_write_ms, kDefaults.client_write_ms,
          "a client that takes nothing of its reply for so long has left");
ABSL_FLAG(int64_t, door_engine_connect_ms, kDefaults.engine_connect_ms,
          "the engine must accept a connection after so long");
ABSL_FLAG(int64_t, door_engine_write_ms, kDefaults.engine_write_ms,
          "an engine that takes nothing of a request for so long is given up");
ABSL_FLAG(int64_t, door_engine_silence_ms, kDefaults.engine_silence_ms,
          "a request of which the engine sends nothing for so long is given up (504 "
          "ENGINE_TIMEOUT); 0: never, it ends with its client or with the engine");
ABSL_FLAG(int64_t, door_engine_pool_ms, kDefaults.engine_pool_ms,
          "an idle connection to the engine is used for so long; less than the engine keeps it");

namespace lorry::proxy {
namespace {

constexpr int64_t kDayMs = 24 * 3'600'000;

template <typename T>
absl::Status Read(const absl::Flag<T>& flag, const char* name, T least, T most, T* into) {
  const T value = absl::GetFlag(flag);
  if (value < least || value > most) {
    return Error(absl::StatusCode::kInvalidArgument, "",
                 absl::StrCat(name, " is ", value, "; it must be from ", least, " to ", most));
  }
  *into = value;
  return absl::OkStatus();
}

absl::Status ReadMs(const absl::Flag<int64_t>& flag, const char* name, int64_t least,
                    int64_t* into) {
  return Read<int64_t>(flag, name, least, 30 * kDayMs, into);
}

absl::Status ReadBytes(const absl::Flag<uint64_t>& flag, const char* name, size_t* into) {
  constexpr uint64_t kLeast = 1024;
  constexpr uint64_t kMost = uint64_t{1} << 40;
  return Read<uint64_t>(flag, name, kLeast, kMost, into);
}

absl::Status ReadCount(const absl::Flag<uint32_t>& flag, const char* name, uint32_t* into) {
  constexpr uint32_t kMost = 1u << 20;
  return Read<uint32_t>(flag, name, 1, kMost, into);
}

}  // namespace

absl::StatusOr<door::DoorLimits> DoorLimitFlags() {
  door::DoorLimits limits;
  const absl::Status read[] = {
      ReadBytes(FLAGS_door_head_bytes, "--door-head-bytes", &limits.head.bytes),
      ReadBytes(FLAGS_door_body_bytes, "--door-body-bytes", &limits.body_bytes),
      ReadBytes(FLAGS_door_all_bodies_bytes, "--door-all-bodies-bytes", &limits.all_bodies_bytes),
      ReadBytes(FLAGS_door_tensors_bytes, "--door-tensors-bytes", &limits.tensors_bytes),
      ReadBytes(FLAGS_door_split_reply_bytes, "--door-split-reply-bytes",
                &limits.split_reply_bytes),
      ReadCount(FLAGS_door_connections, "--door-connections", &limits.connections),
      ReadCount(FLAGS_door_live_requests, "--door-live-requests", &limits.live_requests),
      ReadCount(FLAGS_door_held_requests, "--door-held-requests", &limits.held_requests),
      ReadCount(FLAGS_door_calls, "--door-calls", &limits.calls),
      ReadMs(FLAGS_door_call_ms, "--door-call-ms", 1, &limits.call_ms),
      ReadMs(FLAGS_door_head_ms, "--door-head-ms", 1, &limits.head_ms),
      ReadMs(FLAGS_door_body_ms, "--door-body-ms", 1, &limits.body_ms),
      ReadMs(FLAGS_door_keep_alive_ms, "--door-keep-alive-ms", 1, &limits.keep_alive_ms),
      ReadMs(FLAGS_door_client_write_ms, "--door-client-write-ms", 1, &limits.client_write_ms),
      ReadMs(FLAGS_door_engine_connect_ms, "--door-engine-connect-ms", 1,
             &limits.engine_connect_ms),
      ReadMs(FLAGS_door_engine_write_ms, "--door-engine-write-ms", 1, &limits.engine_write_ms),
      ReadMs(FLAGS_door_engine_silence_ms, "--door-engine-silence-ms", 0,
             &limits.engine_silence_ms),
      ReadMs(FLAGS_door_engine_pool_ms, "--door-engine-pool-ms", 0, &limits.engine_pool_ms),
  };
  for (const absl::Status& status : read) LORRY_RETURN_IF_ERROR(status);
  return limits;
}

}  // namespace lorry::proxy
