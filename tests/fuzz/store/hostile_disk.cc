#include "tests/fuzz/store/hostile_disk.h"

#include <chrono>
#include <thread>

namespace lorry::store::fuzz {
namespace {

// Long enough for other calls to come in meanwhile, also where every core is busy.
constexpr std::chrono::milliseconds kSlow(20);

}  // namespace

void HostileDisk::Fail(blob::BlobOp op, absl::Status status, bool slow) {
  MutexLock lock(mutex_);
  op_ = op;
  status_ = std::move(status);
  slow_ = slow;
}

absl::Status HostileDisk::Before(blob::BlobOp op, std::string_view) {
  absl::Status status;
  bool slow = false;
  {
    MutexLock lock(mutex_);
    if (op != op_) return status;
    status = status_;
    slow = slow_;
  }
  if (slow) std::this_thread::sleep_for(kSlow);  // tidy: allow sleep: a disk that is slow
  return status;
}

}  // namespace lorry::store::fuzz
