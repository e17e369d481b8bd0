// Images that the proxies of one host and user share, so that each is fetched once.
//
//   <directory>/images/<digest>-<readers>   an image, whole and proven; a hard link, as are its names
//                                           in the directories of the proxies that use it
//   <directory>/claims/<digest>-<readers>   locked by the proxy that fetches it
//
// A name appears in images/ by link() once the bytes are proven, and what it names is never written
// while it has that name or another. A claim is a flock, which ends with its process: a proxy that
// dies in a fetch leaves a temporary file in its own pool and a free claim. Nothing needs a lock
// besides: link, rename and unlink are one step each, and whoever takes a file out of images/ to
// write it looks whether it is alone with it afterwards (ImagePool::Adopt). Thread-safe.
//
// docs/adr/0021-one-fetch-a-host.md has the reasons.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/digest.h"
#include "lib/base/file_lock.h"
#include "lib/transfer/checksum.h"
#include "lib/transfer/image_pool.h"
#include "services/engine_proxy/driver/host_cache_plan.h"
#include "services/engine_proxy/driver/private_directory.h"

namespace lorry::proxy {

class HostCache {
 public:
  // The right to fetch one image, as long as it lives.
  class Claim {
   public:
    void TellProgress() const;  // to those that wait; any thread

   private:
    friend class HostCache;
    explicit Claim(FileLock lock) : lock_(std::move(lock)) {}
    const FileLock lock_;
  };

  struct Wanted {
    Digest digest;  // proven to be that of these:
    uint64_t bytes = 0;
    std::span<const transfer::Checksum> leaves;
  };
  // What a proxy gets for an image: the image, or else the right to fetch it. Neither: it fetches
  // for itself, as another one that fetches it makes no progress.
  struct Found {
    std::unique_ptr<transfer::ImageFile> image;  // read-only, under a name of the pool's
    std::unique_ptr<Claim> claim;
  };

  // `pool`: the proxy's own, which outlives this. FAILED_PRECONDITION DIRECTORY_UNSAFE: others than
  // this user may write to the directory; INVALID_ARGUMENT: it is not where the pool's files are.
  // Removes what proxies that died have left.
  static absl::StatusOr<std::unique_ptr<HostCache>> Open(const std::string& directory,
                                                         const ImageReaders& readers,
                                                         transfer::ImagePool& pool,
                                                         HostCacheLimits limits = {});

  // Blocks while another proxy fetches it. The bytes are compared with `leaves`, whoever has put
  // them there. CANCELLED once `cancelled` says so; NOT_FOUND when the directory is gone.
  absl::StatusOr<Found> Find(const Wanted& wanted, const std::function<bool()>& cancelled);
  // Gives a proven image to the others. Nobody may write it from now on.
  absl::Status Share(const Digest& digest, transfer::ImageFile& image);
  // The file of an image that nobody uses any more, to be written anew; null when there is none.
  std::unique_ptr<transfer::ImageFile> TakeUnused(uint64_t bytes);
  // Also where somebody has removed them meanwhile.
  absl::Status MakeDirectories() const;
  // Removes unused images beyond the limits; without limits, all of them.
  void Trim() { RemoveBeyond(limits_); }
  void RemoveUnused() { RemoveBeyond({.idle_bytes_max = 0, .idle_images_max = 0}); }

 private:
  HostCache(std::string directory, std::string suffix, transfer::ImagePool& pool,
            HostCacheLimits limits);
  std::unique_ptr<transfer::ImageFile> TakeProven(const Wanted& wanted);
  // Null while another process has it: `mark` changes with its progress.
  static absl::StatusOr<std::unique_ptr<Claim>> TryClaim(const std::string& path, int64_t* mark);
  std::vector<CachedImage> List() const;
  void RemoveBeyond(const HostCacheLimits& limits);
  void RemoveFreeClaims();
  std::string NameOf(const Digest& digest) const { return digest.value + suffix_; }

  const std::string directory_, images_, claims_;
  const std::string suffix_;  // the same for proxies whose engines may read the same files
  transfer::ImagePool& pool_;
  const HostCacheLimits limits_;
};

}  // namespace lorry::proxy
