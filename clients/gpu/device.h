// The seam to a GPU: everything that the packer asks of one. Implementations: cuda_device.cc, and
// tests/unit/gpu/cpu_device.h, which runs the same kernels on the CPU. Calls queue work and return;
// Await and Wait alone block. One thread at a time packs, and one at a time copies and waits; an image
// is awaited and freed at any time.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>

#include "clients/gpu/plan.h"

namespace lorry::gpu {

// Pinned memory through which bytes leave the GPU. Two: one is copied into while the other is read.
// A copy of 4 MiB takes 80 us over PCIe 5, which hides what it costs to queue one.
inline constexpr int kBuffers = 2;
inline constexpr uint64_t kBufferBytes = 4 << 20;

class Device {
 public:
  virtual ~Device() = default;

  // An image on its way to be packed: device memory that holds the plan's Layout, and the stream in
  // which all that is done with it is queued.
  struct Packed {
    unsigned char* memory = nullptr;
    void* stream = nullptr;
  };

  // Packs what the sources hold once the work that is now in `stream` (a cudaStream_t) is done, and
  // lets `stream` go on when the tiles are packed. On failure it waits for nothing.
  virtual Outcome Pack(const Plan& plan, void* stream, Packed& packed) = 0;
  // Says whether the image is finished; waits for that, but no longer than `limit`. When it is depends
  // on the trainer's work, however long that takes.
  virtual Outcome Await(const Packed& packed, std::chrono::milliseconds limit, bool& finished) = 0;
  // After the copies that were queued before. It may be nothing, or not finished.
  virtual void Free(const Packed& packed) = 0;

  // Queues a copy from the memory of a finished image into a pinned buffer, at most kBufferBytes.
  // Copies into one buffer happen in their order.
  virtual Outcome Copy(const Packed& of, int buffer, const unsigned char* from, uint64_t bytes) = 0;
  // Returns when the newest copy into the buffer is done, or with an error: no wait is longer than
  // the device's limit.
  virtual Outcome Wait(int buffer) = 0;
  virtual const unsigned char* buffer(int buffer) const = 0;
};

// The device of this build, and what torch calls its kind: "cuda".
Outcome OpenDevice(int ordinal, std::unique_ptr<Device>& device);
const char* DeviceKind();

}  // namespace lorry::gpu
