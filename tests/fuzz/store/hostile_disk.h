// Image files in memory on a disk that is slow, full or broken when the input says so.
#pragma once

#include <memory>
#include <string>

#include "lib/base/mutex.h"
#include "lib/blob/failing_store.h"
#include "lib/blob/memory_store.h"

namespace lorry::store::fuzz {

class HostileDisk final : public blob::FailurePlan {
 public:
  blob::Store& store() { return *failing_; }
  // Every operation of one kind, from now on. `slow`: it lasts some milliseconds before that.
  void Fail(blob::BlobOp op, absl::Status status, bool slow);
  void Heal() { Fail(blob::BlobOp::kList, absl::OkStatus(), false); }

 private:
  absl::Status Before(blob::BlobOp op, std::string_view key) override;

  Mutex mutex_;
  blob::BlobOp op_ LORRY_GUARDED_BY(mutex_) = blob::BlobOp::kList;
  absl::Status status_ LORRY_GUARDED_BY(mutex_);
  bool slow_ LORRY_GUARDED_BY(mutex_) = false;
  std::unique_ptr<blob::Store> memory_ = blob::MakeMemoryStore(/*bytes_max=*/uint64_t{256} << 20);
  std::unique_ptr<blob::Store> failing_ = blob::MakeFailingStore(*memory_, *this);
};

}  // namespace lorry::store::fuzz
