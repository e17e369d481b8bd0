// NVIDIA's driver, libcuda.so.1: looked for when a GPU is opened, and not linked. So the library loads
// where there is none, and holds nothing of NVIDIA's. Each call is checked against cuda.h, and has
// the version that linking would have chosen. Any thread.
#pragma once

#include <cuda.h>

#include <string>

namespace lorry::gpu {

#define LORRY_DRIVER_CALLS(X)          \
  X(cuInit)                            \
  X(cuGetErrorString)                  \
  X(cuDeviceGet)                       \
  X(cuDevicePrimaryCtxRetain)          \
  X(cuDevicePrimaryCtxRelease)         \
  X(cuCtxPushCurrent)                  \
  X(cuCtxPopCurrent)                   \
  X(cuThreadExchangeStreamCaptureMode) \
  X(cuModuleLoadData)                  \
  X(cuModuleGetFunction)               \
  X(cuLaunchKernel)                    \
  X(cuStreamCreate)                    \
  X(cuStreamDestroy)                   \
  X(cuStreamIsCapturing)               \
  X(cuStreamQuery)                     \
  X(cuStreamWaitEvent)                 \
  X(cuEventCreate)                     \
  X(cuEventDestroy)                    \
  X(cuEventRecord)                     \
  X(cuEventQuery)                      \
  X(cuMemPoolCreate)                   \
  X(cuMemPoolDestroy)                  \
  X(cuMemPoolSetAttribute)             \
  X(cuMemAllocFromPoolAsync)           \
  X(cuMemFreeAsync)                    \
  X(cuMemAllocHost)                    \
  X(cuMemFreeHost)                     \
  X(cuMemcpyHtoDAsync)                 \
  X(cuMemcpyDtoHAsync)

struct Driver {
#define LORRY_DRIVER_CALL(name) decltype(&::name) name = nullptr;
  LORRY_DRIVER_CALLS(LORRY_DRIVER_CALL)
#undef LORRY_DRIVER_CALL

  // The driver of this machine, which stays loaded. Without one `missing` says what there is not.
  static const Driver* Find(std::string& missing);
};

}  // namespace lorry::gpu
