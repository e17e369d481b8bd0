// Every open server stream, so that a server can finish them before it shuts gRPC down (gRPC 1.51's
// Shutdown hangs while a reactor has not called Finish) and end those whose peer stopped reading.
// Thread-safe.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "lib/base/clock.h"
#include "lib/base/mutex.h"

namespace lorry::rpc {

// One open stream, whatever its messages.
class OpenStream {
 public:
  virtual ~OpenStream() = default;
  // Ends the stream with `status` once the write in flight is done; OK also writes what still
  // waits. The first call counts.
  virtual void Close(absl::Status status) = 0;
  // Ends it at once: what is in flight is dropped.
  virtual void Cancel(absl::Status status) = 0;
  // How long the write in flight has waited for the peer; 0 when there is none.
  virtual int64_t WriteStalledMs(Tick now) const = 0;
};

class StreamRegistry {
 public:
  // False once CloseAll was called: the stream must be refused.
  bool Add(std::shared_ptr<OpenStream> stream);
  void Remove(const std::shared_ptr<OpenStream>& stream);

  // Refuses new streams and asks all open ones to end.
  void CloseAll(const absl::Status& status);
  void CancelAll(const absl::Status& status);
  // Cancels streams whose peer has not taken a message for `stall_max_ms`; returns how many.
  int CancelStalled(Tick now, int64_t stall_max_ms);
  // True when all are gone by `deadline`.
  bool WaitEmpty(Tick deadline);
  size_t size() const;

 private:
  std::vector<std::shared_ptr<OpenStream>> Open() const;

  mutable Mutex mutex_;
  CondVar empty_;
  bool closed_ LORRY_GUARDED_BY(mutex_) = false;
  std::set<std::shared_ptr<OpenStream>> open_ LORRY_GUARDED_BY(mutex_);
};

}  // namespace lorry::rpc
