// The door: an HTTP/1.1 reverse proxy in front of one engine, where rollout clients come in.
//
// Each request is resolved once, at admission, against the table that the machine set last; only
// its adapter reference is rewritten; it counts until the last byte was relayed or the engine was
// read to the end. Public methods may be called from any thread; callbacks come from the door's
// threads and must not block. Asio stays behind this header.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "services/engine_proxy/door/call.h"
#include "services/engine_proxy/door/explain.h"
#include "services/engine_proxy/door/framing.h"
#include "services/engine_proxy/door/observer.h"
#include "services/engine_proxy/door/rewrite.h"
#include "services/engine_proxy/door/router.h"

namespace lorry::door {

// Times are idle times: they start anew with every byte. Tensors have one for all of them, too.
//
// No time limit ends a request that the engine has, unless engine_silence_ms is set: an answer may
// take hours. It ends with its client, with the engine's process, or with the engine's host, whose
// silence TCP keepalive notices (tcp.h).
struct DoorLimits {
  HeadLimits head;
  size_t body_bytes = 32u << 20;         // prompts as token lists of 1 M tokens are 8 MB
  size_t all_bodies_bytes = 512u << 20;  // of all requests together, before the engine has them
  // Of bodies that carry an adapter, of one and of all together; one that finds no room waits. In
  // base64 an adapter of rank 32 for a model of 8 B has 224 MB, and is there once for each rank of
  // its engine. The proxy needs four times as much while it reads one.
  size_t tensors_bytes = 512u << 20;
  size_t split_reply_bytes = 16u << 20;  // of one of n: logprobs of 32 k tokens are 4 MB
  uint32_t connections = 16'384;         // one descriptor each, and one at the engine
  // Above any engine's own queue. One that is split into n counts as n, and less as these end: each
  // has a connection to the engine.
  uint32_t live_requests = 8'192;
  uint32_t held_requests = 8'192;     // waiting at HELD rows
  uint32_t calls = 64;                // of frameworks, that wait for their answers
  uint32_t pooled_connections = 256;  // idle ones to the engine, a thread
  int64_t head_ms = 10'000;           // haproxy's `timeout http-request`; for the whole head
  int64_t body_ms = 30'000;
  int64_t keep_alive_ms = 75'000;    // nginx's default
  int64_t client_write_ms = 60'000;  // a reader that takes nothing for so long has left
  int64_t engine_connect_ms = 5'000;
  // The engine sends nothing for so long: the door gives the request up. 0: it never does.
  int64_t engine_silence_ms = 0;
  // The engine takes nothing of a request for so long.
  int64_t engine_write_ms = 300'000;
  int64_t engine_pool_ms = 4'000;  // uvicorn closes idle connections after 5 s
  // How long a framework's call may last: longer than its owner lets any go on. One that waits for
  // running requests may last as long as they do.
  int64_t call_ms = 1'200'000;
  // How often limits are looked at, and so how precise they are. From the first look on that a
  // request lives to see, it is noticed when its client leaves.
  int64_t sweep_ms = 250;
};

struct DoorOptions {
  std::string listen_host = "127.0.0.1";
  uint16_t port = 0;  // 0: any free one, see port()
  std::string engine_host = "127.0.0.1";
  uint16_t engine_port = 0;
  uint32_t threads = 0;  // 0: one a core, at most 4; engines need the others
  bool allow_unknown_routes = false;
  // SGLang's /generate tells everybody in `meta_info.weight_version` which version made the reply,
  // and not only who asks by `X-Lorry-Body`.
  bool weight_versions = false;
  // Answers the calls of frameworks, which change the engine for everybody; without one they are
  // refused. From the door's threads.
  CallOwner on_call;
  DoorLimits limits;
  size_t explained_requests = 4096;
  DoorObserver* observer = nullptr;  // outlives the door
  // Called after every SetTable, on its thread, and when a name that nothing routes to has no
  // request left, on any.
  std::function<void(const Counts&)> on_counts;
  // Called once, when the door begins to drain, on the thread that asked for it.
  std::function<void()> on_draining;
  // Called once, when the door has drained: nobody is connected any more, and nobody can connect.
  std::function<void()> on_closed;
};

class Door {
 public:
  explicit Door(DoorOptions options);
  ~Door();  // drains with no grace
  Door(const Door&) = delete;
  Door& operator=(const Door&) = delete;

  // Binds, resolves the engine's address and starts the threads. UNAVAILABLE LISTEN_FAILED or
  // ENGINE_UNREACHABLE.
  absl::Status Start();
  uint16_t port() const;

  // What the engine's driver found out; may change with every boot, as may the address of its host,
  // which is looked up anew.
  void SetEngineFacts(EngineFacts facts);
  // From its return on, no request is admitted by an older table. Requests waiting at HELD rows
  // resolve anew.
  void SetTable(proxy::DoorTable table);
  Counts Snapshot() const;
  uint32_t held() const;  // requests that wait here for another table
  // Grows with every piece of a reply to a counted request that shows that the engine works: not
  // with an error, nor with what its HTTP server sends before the engine has the request.
  uint64_t pieces_heard() const;

  std::optional<Explained> Explain(std::string_view request_id) const;
  std::vector<Explained> Recent(size_t limit) const;

  // Stops accepting and lets running requests end (replies say `Connection: close`); a request that
  // waits here, or would have to, is refused with DRAINING. Blocks until none is left, at most
  // `wait_ms`; false: some still run, and go on running. May be called again, to go on waiting, and
  // while Drain runs, which ends the wait.
  bool Quiesce(int64_t wait_ms);
  bool draining() const;  // nobody is admitted any more
  // Quiesce for `grace_ms`, then aborts what is left and joins the threads. Blocks. A second caller
  // waits for the first.
  void Drain(int64_t grace_ms);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lorry::door
