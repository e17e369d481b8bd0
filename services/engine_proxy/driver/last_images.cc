#include "services/engine_proxy/driver/last_images.h"

#include <spdlog/spdlog.h>

#include <memory>
#include <string>

namespace lorry::proxy {
namespace {

// Of more adapters than that images come as they are.
constexpr size_t kAdaptersMax = 1000;

}  // namespace

void LastImages::Placed(const Fetch& fetch) {
  MutexLock lock(mutex_);
  if (last_.size() >= kAdaptersMax && !last_.contains(fetch.key.adapter)) last_.clear();
  last_.insert_or_assign(fetch.key.adapter, fetch);
}

std::optional<transfer::Base> LastImages::BaseOf(const AdapterName& adapter, uint64_t image_bytes) {
  Fetch last;
  {
    MutexLock lock(mutex_);
    const auto it = last_.find(adapter);
    if (it == last_.end()) return std::nullopt;
    last = it->second;
  }
  absl::StatusOr<std::unique_ptr<transfer::ImageFile>> image =
      shelf_.OpenProven(last.name, last.digest, last.render);
  if (!image.ok() || (*image)->size() != image_bytes) return std::nullopt;
  absl::StatusOr<Manifest> manifest = source_(last.key);
  if (!manifest.ok() || manifest->digest != last.digest) return std::nullopt;
  const std::shared_ptr<transfer::ImageFile> owner = *std::move(image);
  return transfer::Base{owner, owner->bytes(), std::move(manifest->ticket)};
}

}  // namespace lorry::proxy
