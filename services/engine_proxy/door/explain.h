// The last requests, by request id: what `lorry why <request-id>` reads. Thread-safe. Keeps a
// bounded number of requests, and nothing of any body.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/mutex.h"
#include "services/engine_proxy/door/router.h"

namespace lorry::door {

struct Explained {
  std::string request_id;  // X-Lorry-Request-Id; on SGLang also the engine's rid
  std::string client_id;   // the client's own rid or X-Request-Id, if it gave one
  std::string path;
  References asked;                // as the client wrote them; of a batch the first ones
  std::vector<Resolved> resolved;  // empty when refused
  int64_t began_unix_ms = 0;
  int64_t held_ms = 0;         // waited at a HELD row, or for its adapter
  int64_t first_byte_ms = -1;  // after the beginning; -1: none came
  // Until the last byte was relayed or the engine was read to the end; -1: still running.
  int64_t done_ms = -1;
  uint64_t reply_bytes = 0;
  int status = 0;
  std::string reason;  // of a refusal, or how it ended: CLIENT_GONE, ENGINE_BROKE_OFF
};

class ExplainRing {
 public:
  // 4,096 requests of 500 bytes are 2 MB and, at 100 a second, the last 40 seconds.
  explicit ExplainRing(size_t capacity = 4096) : capacity_(capacity) {}
  void Put(Explained explained) LORRY_EXCLUDES(mutex_);
  // By request id or by the client's own id; the newest.
  std::optional<Explained> Find(std::string_view id) const LORRY_EXCLUDES(mutex_);
  std::vector<Explained> Recent(size_t limit) const LORRY_EXCLUDES(mutex_);

 private:
  const size_t capacity_;
  mutable Mutex mutex_;
  std::vector<Explained> ring_ LORRY_GUARDED_BY(mutex_);
  size_t next_ LORRY_GUARDED_BY(mutex_) = 0;
};

}  // namespace lorry::door
