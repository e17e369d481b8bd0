#include "lib/transfer/arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "lib/base/error.h"
#include "lib/transfer/ranges.h"

namespace lorry::transfer {
namespace {

constexpr uint64_t kHugePageBytes = uint64_t{2} << 20;

}  // namespace

absl::StatusOr<std::unique_ptr<Arena>> Arena::Create(uint64_t bytes) {
  const auto refused = [&] {
    return Error(absl::StatusCode::kResourceExhausted, "OUT_OF_MEMORY",
                 absl::StrCat("cannot allocate an arena of ", bytes, " bytes"));
  };
  if (bytes > kImageBytesMax) return refused();
  const uint64_t capacity =
      std::max<uint64_t>(1, (bytes + kHugePageBytes - 1) / kHugePageBytes) * kHugePageBytes;
  // One huge page more, so that the block can begin on a huge page's boundary; the rest is given
  // back.
  void* raw = mmap(nullptr, capacity + kHugePageBytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) return refused();
  const auto start = reinterpret_cast<uintptr_t>(raw);
  const uintptr_t aligned = (start + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  if (aligned > start) munmap(raw, aligned - start);
  const uint64_t tail = start + kHugePageBytes - aligned;
  if (tail > 0) munmap(reinterpret_cast<void*>(aligned + capacity), tail);
  auto* data = reinterpret_cast<std::byte*>(aligned);
  // Where the kernel has no huge pages this changes nothing, and nothing depends on it.
  madvise(data, capacity, MADV_HUGEPAGE);
  std::memset(data, 0, capacity);
  return std::unique_ptr<Arena>(new Arena(data, capacity));
}

Arena::~Arena() { munmap(data_, capacity_); }

}  // namespace lorry::transfer
