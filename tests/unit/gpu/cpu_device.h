// A GPU made of the CPU: runs each block and each thread of the kernels, the threads in an order that
// the test chooses, at once. Device memory is this process's, and a stream is nothing.
#pragma once

#include <memory>
#include <vector>

#include "clients/gpu/device.h"

namespace lorry::gpu {

class CpuDevice : public Device {
 public:
  explicit CpuDevice(unsigned stride = 1) : stride_(stride) {}

  Outcome Pack(const Plan& plan, void* stream, Packed& packed) override;
  Outcome Await(const Packed&, std::chrono::milliseconds, bool& finished) override {
    finished = true;
    return {};
  }
  void Free(const Packed& packed) override;
  Outcome Copy(const Packed&, int buffer, const unsigned char* from, uint64_t bytes) override;
  Outcome Wait(int) override { return {}; }
  const unsigned char* buffer(int buffer) const override { return buffers_[buffer].data(); }

 private:
  const unsigned stride_;
  std::vector<unsigned char> buffers_[kBuffers];
};

}  // namespace lorry::gpu
