#include "tests/fuzz/heap_watch.h"

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

void OnMalloc(const volatile void*, size_t size) {
  if (ignored) return;
  const int64_t now = live.fetch_add(static_cast<int64_t>(size)) + static_cast<int64_t>(size);
  int64_t seen = peak.load();
  while (now > seen && !peak.compare_exchange_weak(seen, now)) {
  }
}

void OnFree(const volatile void* pointer) {
  if (ignored || pointer == nullptr) return;
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
