#include "clients/gpu/drain.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace lorry::gpu {

Drain::Drain(Device& device, const Device::Packed& of, std::vector<Part> parts)
    : device_(device), of_(of), parts_(std::move(parts)) {
  SkipEmpty();
  for (int buffer = 0; buffer < kBuffers && failed_.ok(); ++buffer) failed_ = Launch(buffer);
}

Outcome Drain::Next(uint64_t& landed) {
  if (!failed_.ok() || done()) return failed_;
  const Flight flight = flying_.front();
  failed_ = device_.Wait(flight.buffer);
  if (!failed_.ok()) return failed_;
  std::memcpy(flight.to, device_.buffer(flight.buffer), flight.bytes);
  flying_.pop_front();
  landed += flight.bytes;
  failed_ = Launch(flight.buffer);
  return failed_;
}

Outcome Drain::Launch(int buffer) {
  if (part_ == parts_.size()) return {};
  const Part& part = parts_[part_];
  const uint64_t bytes = std::min(kBufferBytes, part.bytes - offset_);
  if (Outcome queued = device_.Copy(of_, buffer, part.from + offset_, bytes); !queued.ok())
    return queued;
  flying_.push_back({buffer, part.to + offset_, bytes});
  offset_ += bytes;
  SkipEmpty();
  return {};
}

void Drain::SkipEmpty() {
  while (part_ < parts_.size() && offset_ == parts_[part_].bytes) {
    ++part_;
    offset_ = 0;
  }
}

}  // namespace lorry::gpu
