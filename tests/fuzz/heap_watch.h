// How many bytes the code under test holds on the heap, and how many it held at most.
//
// Counts what every thread allocates except those that call Ignore(), which are the fuzzer's own.
// It needs a sanitizer's allocator; in other builds all figures stay 0 and nothing is checked.
#pragma once

#include <cstdint>

namespace lorry::fuzz {

class HeapWatch {
 public:
  // Begins to count; once, before the first thread of the code under test.
  static void Install();
  // What this thread allocates from now on does not count, whoever frees it.
  static void Ignore();
  static int64_t live_bytes();
  // At most, since ResetPeak, above what was held then.
  static int64_t peak_bytes();
  static void ResetPeak();
};

}  // namespace lorry::fuzz
