// operator new and delete of the programs that run seeds, where malloc takes a fifth of the time: the
// machines make and drop millions of small values, and nothing else runs beside them. A block goes
// back to its size's list, and is the next that is given out; nothing is given back to the system.
// Any thread may call these.
#include <sys/mman.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace {

constexpr size_t kStep = 16;                 // bytes from one size to the next
constexpr size_t kSizes = 64;                // larger blocks are malloc's
constexpr size_t kSlab = size_t{1} << 16;    // bytes of one size
constexpr size_t kRegion = size_t{1} << 34;  // reserved, far beyond what a seed takes
constexpr size_t kSlabs = kRegion / kSlab;

struct Block {
  Block* next;
};

constinit thread_local std::array<Block*, kSizes + 1> free_blocks{};
constinit std::array<uint8_t, kSlabs> size_of_slab{};
constinit std::atomic<size_t> slabs_taken{0};

// Null where the system reserves nothing: all blocks are malloc's then.
char* Region() {
  static char* const region = [] {
    void* const at = mmap(nullptr, kRegion, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return at == MAP_FAILED ? nullptr : static_cast<char*>(at);
  }();
  return region;
}
constinit char* region_begin = nullptr;  // Region(), once a slab was taken

// False where no slab is left.
bool TakeSlab(size_t size) {
  char* const region = Region();
  const size_t slab = slabs_taken.fetch_add(1);
  if (region == nullptr || slab >= kSlabs) return false;
  region_begin = region;
  size_of_slab[slab] = static_cast<uint8_t>(size);
  char* const begin = region + slab * kSlab;
  for (size_t at = kSlab / (size * kStep); at > 0; --at) {
    auto* const block = reinterpret_cast<Block*>(begin + (at - 1) * size * kStep);
    block->next = free_blocks[size];
    free_blocks[size] = block;
  }
  return true;
}

void* FromMalloc(size_t bytes) {
  if (void* const at = std::malloc(bytes)) return at;
  throw std::bad_alloc();
}

}  // namespace

void* operator new(size_t bytes) {
  const size_t size = bytes == 0 ? 1 : (bytes + kStep - 1) / kStep;
  if (size > kSizes || (free_blocks[size] == nullptr && !TakeSlab(size)))
    return FromMalloc(bytes == 0 ? 1 : bytes);
  Block* const block = free_blocks[size];
  free_blocks[size] = block->next;
  return block;
}

void operator delete(void* at) noexcept {
  const auto offset = static_cast<size_t>(static_cast<char*>(at) - region_begin);
  if (region_begin == nullptr || offset >= kRegion) return std::free(at);
  const size_t size = size_of_slab[offset / kSlab];
  auto* const block = static_cast<Block*>(at);
  block->next = free_blocks[size];
  free_blocks[size] = block;
}

void operator delete(void* at, size_t) noexcept { operator delete(at); }
