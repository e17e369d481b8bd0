#include "services/engine_proxy/driver/host_cache_plan.h"

#include <algorithm>

#include "lib/transfer/image_pool.h"

namespace lorry::proxy {
namespace {

std::vector<const CachedImage*> LongestUnusedFirst(const std::vector<CachedImage>& images) {
  std::vector<const CachedImage*> unused;
  for (const CachedImage& image : images) {
    if (!image.used) unused.push_back(&image);
  }
  std::stable_sort(unused.begin(), unused.end(), [](const CachedImage* a, const CachedImage* b) {
    return a->idle_since < b->idle_since;
  });
  return unused;
}

}  // namespace

std::string ImageToRewrite(const std::vector<CachedImage>& images, uint64_t bytes) {
  for (const CachedImage* image : LongestUnusedFirst(images)) {
    if (transfer::FileServes(image->bytes, bytes)) return image->name;
  }
  return "";
}

std::vector<std::string> ImagesToRemove(const std::vector<CachedImage>& images,
                                        const HostCacheLimits& limits) {
  const std::vector<const CachedImage*> unused = LongestUnusedFirst(images);
  uint64_t bytes = 0;
  for (const CachedImage* image : unused) bytes += image->bytes;
  std::vector<std::string> gone;
  for (const CachedImage* image : unused) {
    if (bytes <= limits.idle_bytes_max && unused.size() - gone.size() <= limits.idle_images_max)
      break;
    gone.push_back(image->name);
    bytes -= image->bytes;
  }
  return gone;
}

bool FetchWatch::IsWorthIt(Tick now, int64_t mark) {
  if (mark != mark_) {
    mark_ = mark;
    heard_ = now;
  }
  return now - heard_ < kSilentMs;
}

}  // namespace lorry::proxy
