// Private memory for senders: on huge pages where the kernel grants them, touched in advance,
// reused. Copies from 4 KiB pages run at a third of the speed of copies from huge ones (4 against
// 12 GB/s by CMA).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/base/mutex.h"

namespace lorry::transfer {

// One block. Not synchronised; disjoint bytes may be used at once.
class Arena {
 public:
  // At least `bytes`, rounded up to 2 MiB. RESOURCE_EXHAUSTED OUT_OF_MEMORY when the kernel
  // refuses.
  static absl::StatusOr<std::unique_ptr<Arena>> Create(uint64_t bytes);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  std::span<std::byte> bytes() { return {data_, capacity_}; }
  uint64_t capacity() const { return capacity_; }

 private:
  Arena(std::byte* data, uint64_t capacity) : data_(data), capacity_(capacity) {}
  std::byte* data_;
  uint64_t capacity_;
};

// Arenas kept for reuse, bounded in bytes. Thread-safe. Arenas that are out may outlive the pool.
class ArenaPool {
 public:
  explicit ArenaPool(uint64_t idle_bytes_max) : idle_bytes_max_(idle_bytes_max) {}
  // The smallest idle arena of at least `bytes`, or a fresh one. Content is undefined.
  absl::StatusOr<std::unique_ptr<Arena>> Acquire(uint64_t bytes) LORRY_EXCLUDES(mutex_);
  void Release(std::unique_ptr<Arena> arena) LORRY_EXCLUDES(mutex_);
  uint64_t idle_bytes() const LORRY_EXCLUDES(mutex_);

 private:
  const uint64_t idle_bytes_max_;
  mutable Mutex mutex_;
  std::vector<std::unique_ptr<Arena>> idle_ LORRY_GUARDED_BY(mutex_);
  uint64_t idle_bytes_ LORRY_GUARDED_BY(mutex_) = 0;
};

}  // namespace lorry::transfer
