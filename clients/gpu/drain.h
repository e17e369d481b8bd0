// Takes bytes from a GPU through the device's two pinned buffers: while one is emptied, the other is
// filled. One drain of a device at a time; it may be given up at any step, as the next drain's copies
// into the same buffers come after. Belongs to one thread.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "clients/gpu/device.h"

namespace lorry::gpu {

class Drain {
 public:
  struct Part {
    const unsigned char* from;  // device memory
    unsigned char* to;
    uint64_t bytes;
  };
  // Of a finished image. The device and all memory outlive the drain.
  Drain(Device& device, const Device::Packed& of, std::vector<Part> parts);

  // Lands the next bytes, at most kBufferBytes of one part, and adds how many to `landed`. Parts land
  // in their order. After a failure nothing is done but to fail again.
  Outcome Next(uint64_t& landed);
  bool done() const { return flying_.empty() && part_ == parts_.size(); }

 private:
  struct Flight {
    int buffer;
    unsigned char* to;
    uint64_t bytes;
  };
  Outcome Launch(int buffer);
  void SkipEmpty();

  Device& device_;
  const Device::Packed of_;
  std::vector<Part> parts_;
  size_t part_ = 0;      // the next to launch from
  uint64_t offset_ = 0;  // in it
  std::deque<Flight> flying_;
  Outcome failed_;
};

}  // namespace lorry::gpu
