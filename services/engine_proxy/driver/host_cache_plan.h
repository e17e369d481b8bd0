// What a host's cache of images keeps, gives away and waits for. Pure: no I/O, no clock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "lib/base/clock.h"

namespace lorry::proxy {

struct CachedImage {
  std::string name;
  uint64_t bytes = 0;
  bool used = false;       // by some proxy of the host
  int64_t idle_since = 0;  // of one that is not used: when it lost its last user; any unit
};

// Of images that no proxy uses. What is used costs nothing here: its users hold its pages.
struct HostCacheLimits {
  uint64_t idle_bytes_max = uint64_t{4} << 30;  // as much as one proxy's pool keeps for reuse
  size_t idle_images_max = 16;
};

// The image whose file may take the next one of `bytes`: unused for longest among those whose size
// fits. Empty: none.
std::string ImageToRewrite(const std::vector<CachedImage>& images, uint64_t bytes);
// What is beyond the limits, unused for longest first.
std::vector<std::string> ImagesToRemove(const std::vector<CachedImage>& images,
                                        const HostCacheLimits& limits);

// Whether it is worth waiting for another proxy's fetch. That proxy's end is the kernel's to tell;
// this is about one that is stopped, or whose source is silent. One that moves ends by its own
// deadline, which grows with the image.
class FetchWatch {
 public:
  // Without progress for so long: whoever waits helps itself. Longer than the slowest step that
  // tells nothing, the first touch of a fresh file (0.3 GB/s at worst, so 3 s for 1 GB).
  static constexpr Tick kSilentMs = 5'000;

  explicit FetchWatch(Tick now) : heard_(now) {}
  // `mark` changes with the other's progress.
  bool IsWorthIt(Tick now, int64_t mark);

 private:
  Tick heard_;
  int64_t mark_ = 0;
};

}  // namespace lorry::proxy
