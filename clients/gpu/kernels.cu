// The kernels as functions that the driver finds by their names. This file alone is compiled by nvcc;
// what it makes of it lies in cuda_device.cc's object, and no library of NVIDIA's is linked.
#include "clients/gpu/kernels.h"

namespace lorry::gpu {

extern "C" __global__ void __launch_bounds__(kThreads) lorry_pack(View view) {
  __shared__ TileMemory shared;
  PackTile(Block{kThreads}, view, blockIdx.x, shared);
}

extern "C" __global__ void __launch_bounds__(kLeafThreads) lorry_finish(View view) {
  __shared__ LeafMemory shared;
  FinishLeaf(Block{kLeafThreads}, view, blockIdx.x, shared);
}

}  // namespace lorry::gpu
