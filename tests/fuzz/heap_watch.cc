#include "tests/fuzz/heap_watch.h"

#include <array>
#include <atomic>
#include <cstddef>

extern "C" {
// Leaks are seen by what stays on the heap; a search for them after each input would stop all
// threads. A small quarantine leaves the caches to the code under test.
const char* __asan_default_options() { return "detect_leaks=0:quarantine_size_mb=16"; }
// Of the sanitizers' runtime, and absent without one.
[[gnu::weak]] int __sanitizer_install_malloc_and_free_hooks(
    void (*malloc_hook)(const volatile void*, size_t), void (*free_hook)(const volatile void*));
[[gnu::weak]] size_t __sanitizer_get_allocated_size(const volatile void*);
}

namespace lorry::fuzz {
namespace {

std::atomic<int64_t> live{0};
std::atomic<int64_t> peak{0};
std::atomic<int64_t> live_at_reset{0};
thread_local bool ignored = false;

// What ignored threads allocated and nobody has freed yet: another thread may free it, and an
// ignored thread frees what others allocated. Buckets of fixed size, because it is called from
// malloc; where one is full the allocation is counted after all.
class Uncounted {
 public:
  // Whether there was room.
  bool Insert(const volatile void* pointer) { return Swap(pointer, 0, AsNumber(pointer)); }
  // Whether it was there.
  bool Erase(const volatile void* pointer) { return Swap(pointer, AsNumber(pointer), 0); }

 private:
  using Bucket = std::array<std::atomic<uintptr_t>, 16>;

  static uintptr_t AsNumber(const volatile void* pointer) {
    return reinterpret_cast<uintptr_t>(pointer);
  }
  bool Swap(const volatile void* pointer, uintptr_t from, uintptr_t to) {
    constexpr uint64_t kMix = 0x9E3779B97F4A7C15;  // spreads neighbouring addresses
    for (std::atomic<uintptr_t>& slot : buckets_[(AsNumber(pointer) * kMix) >> 48]) {
      uintptr_t seen = from;
      if (slot.compare_exchange_strong(seen, to)) return true;
    }
    return false;
  }

  std::array<Bucket, 1 << 16> buckets_{};
};

Uncounted uncounted;

void OnMalloc(const volatile void* pointer, size_t size) {
  if (pointer == nullptr || (ignored && uncounted.Insert(pointer))) return;
  const int64_t now = live.fetch_add(static_cast<int64_t>(size)) + static_cast<int64_t>(size);
  int64_t seen = peak.load();
  while (now > seen && !peak.compare_exchange_weak(seen, now)) {
  }
}

void OnFree(const volatile void* pointer) {
  if (pointer == nullptr || uncounted.Erase(pointer)) return;
  live.fetch_sub(static_cast<int64_t>(__sanitizer_get_allocated_size(pointer)));
}

}  // namespace

void HeapWatch::Install() {
  if (__sanitizer_install_malloc_and_free_hooks != nullptr) {
    __sanitizer_install_malloc_and_free_hooks(OnMalloc, OnFree);
  }
}
void HeapWatch::Ignore() { ignored = true; }
int64_t HeapWatch::live_bytes() { return live.load(); }
int64_t HeapWatch::peak_bytes() { return peak.load() - live_at_reset.load(); }
void HeapWatch::ResetPeak() {
  live_at_reset = live.load();
  peak = live_at_reset.load();
}

}  // namespace lorry::fuzz
