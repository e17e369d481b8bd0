// One publish from a GPU: tensors are packed into an image in device memory, what they hold is found
// out on the way, and the image comes down piece by piece. Belongs to one thread at a time. Of the jobs
// of a device one is packed at a time, and one at a time is found or landed.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "clients/gpu/drain.h"

namespace lorry::gpu {

struct Hash {
  uint8_t bytes[16];
};

class Job {
 public:
  // Bytes of the image that are to come down.
  struct Span {
    uint64_t begin, bytes;
  };

  // The device outlives the job.
  explicit Job(Device& device) : device_(device) {}
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  // Queues the kernels; see Device::Pack. The sources' memory may change once the work that the
  // stream does from now on begins. Once.
  Outcome Pack(std::vector<Source> sources, uint64_t image_bytes, void* stream);

  // Says whether the kernels have run; waits for that, but no longer than `limit`. After Pack.
  Outcome Await(std::chrono::milliseconds limit, bool& finished);
  // Fetches what the kernels found, and waits for it where it was not awaited. After Pack, once.
  Outcome Find();
  // One for each source; after Find.
  const std::vector<TensorStats>& stats() const { return stats_; }
  // Of each leaf of the image its hash, where all of it is packed.
  const std::vector<std::optional<Hash>>& leaves() const { return leaves_; }

  // Lands the next bytes of the image, whose memory is `image`, and adds how many to `landed`; none
  // when all have. The first call after Find names the spans, which must lie within it.
  Outcome Land(unsigned char* image, std::span<const Span> spans, uint64_t& landed);

 private:
  Device& device_;
  std::vector<Source> sources_;
  Plan plan_;
  Device::Packed packed_;
  std::vector<TensorStats> stats_;
  std::vector<std::optional<Hash>> leaves_;
  std::optional<Drain> drain_;
};

}  // namespace lorry::gpu
