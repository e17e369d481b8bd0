// The last image of each adapter that was placed here, which a fetch of the next one may start from: over
// a slow link the store then sends what has changed since (lib/transfer/delta.h).
//
// Thread-safe. Owned by main; shelf and source outlive it.
#pragma once

#include <map>
#include <optional>
#include <utility>

#include "lib/base/ids.h"
#include "lib/base/mutex.h"
#include "lib/transfer/transport.h"
#include "services/engine_proxy/driver/image_shelf.h"
#include "services/engine_proxy/driver/manifest.h"
#include "services/engine_proxy/machine/effects.h"

namespace lorry::proxy {

class LastImages {
 public:
  LastImages(ImageShelf& shelf, ManifestSource source)
      : shelf_(shelf), source_(std::move(source)) {}

  void Placed(const Fetch& fetch) LORRY_EXCLUDES(mutex_);
  // Nothing where no image of that length lies here that is what it was, or the store has it no more.
  // Blocks: the image is hashed, the store is asked.
  std::optional<transfer::Base> BaseOf(const AdapterName& adapter, uint64_t image_bytes)
      LORRY_EXCLUDES(mutex_);

 private:
  ImageShelf& shelf_;
  const ManifestSource source_;
  Mutex mutex_;
  std::map<AdapterName, Fetch> last_ LORRY_GUARDED_BY(mutex_);
};

}  // namespace lorry::proxy
