// liblorry_gpu.so with the CPU for a GPU.
#include "tests/unit/gpu/cpu_device.h"

namespace lorry::gpu {

Outcome OpenDevice(int, std::unique_ptr<Device>& device) {
  device = std::make_unique<CpuDevice>();
  return {};
}

const char* DeviceKind() { return "cpu"; }

}  // namespace lorry::gpu
