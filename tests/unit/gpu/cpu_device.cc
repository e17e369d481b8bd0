#include "tests/unit/gpu/cpu_device.h"

#include <cstdlib>
#include <cstring>

#include "clients/gpu/kernels.h"

namespace lorry::gpu {

Outcome CpuDevice::Pack(const Plan& plan, void*, Packed& packed) {
  const Layout layout(plan);
  const uint64_t bytes = (layout.end / 256 + 1) * 256;  // never none
  auto* taken = static_cast<unsigned char*>(std::aligned_alloc(256, bytes));
  std::memset(taken, 0xa5, bytes);
  const auto upload = [&](uint64_t at, const auto& table) {
    if (!table.empty()) std::memcpy(taken + at, table.data(), table.size() * sizeof(table[0]));
  };
  upload(layout.tables, plan.segments);
  upload(layout.tiles, plan.tiles);
  upload(layout.leaves, plan.leaves);
  const View view = View::Of(plan, taken);
  auto tile = std::make_unique<TileMemory>();
  std::memset(static_cast<void*>(tile.get()), 0x5a, sizeof(TileMemory));
  // The last block first: no block may count on another.
  for (size_t i = plan.tiles.size(); i-- > 0;)
    PackTile({kThreads, stride_}, view, static_cast<unsigned>(i), *tile);
  LeafMemory leaf;
  for (size_t i = plan.leaves.size(); i-- > 0;)
    FinishLeaf({kLeafThreads, stride_}, view, static_cast<unsigned>(i), leaf);
  packed.memory = taken;
  return {};
}

void CpuDevice::Free(const Packed& packed) { std::free(packed.memory); }

Outcome CpuDevice::Copy(const Packed&, int buffer, const unsigned char* from, uint64_t bytes) {
  buffers_[buffer].assign(from, from + bytes);
  return {};
}

}  // namespace lorry::gpu
