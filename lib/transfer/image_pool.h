// Recycles image files of one directory (such as /dev/shm/lorry-<member>): the pages of a retired
// version take the next one, since an adapter's image has about the same size in every version of a
// run.
//
// One process owns the directory (locked); what a crashed predecessor left under the pool's own
// names is removed at start, files that were moved to other names are their owners' to judge. A
// file is written anew only where it has one name and nobody has it open or mapped, engines
// included: the kernel is asked (ImageFile::IsSole). Otherwise the pool removes its name, and who
// reads it goes on. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/base/file_lock.h"
#include "lib/base/mutex.h"
#include "lib/transfer/image_file.h"

namespace lorry::transfer {

// Whether a file may serve an image: one that is up to a sixteenth smaller, as versions of a run
// differ by metadata only, and a much larger file would waste what its tail cost to touch.
bool FileServes(uint64_t file_bytes, uint64_t image_bytes);

class ImagePool {
 public:
  struct Options {
    std::string directory;                        // created if absent, mode 0700
    uint64_t idle_bytes_max = uint64_t{4} << 30;  // files kept for reuse, together
    size_t idle_files_max = 16;
    uint64_t total_bytes_max = uint64_t{1}
                               << 42;  // idle and handed out; RESOURCE_EXHAUSTED POOL_FULL
  };
  struct Counts {
    uint64_t created = 0, recycled = 0, dropped = 0;
    uint64_t idle_bytes = 0, busy_bytes = 0;
  };

  // FAILED_PRECONDITION POOL_IN_USE when another process holds the directory.
  static absl::StatusOr<std::unique_ptr<ImagePool>> Open(Options options);
  ~ImagePool();  // removes idle files; files that are out stay

  // A writable, pre-faulted file of exactly `bytes` under a name of the pool's own; its old content
  // may be anything. May take a fraction of a second for a fresh file: not for a transport's
  // thread. RESOURCE_EXHAUSTED DISK_FULL or POOL_FULL, after idle files were given up for it.
  absl::StatusOr<std::unique_ptr<ImageFile>> Acquire(uint64_t bytes) LORRY_EXCLUDES(mutex_);

  // Gives another directory's file a name of the pool's own besides, and opens it to be read.
  // NOT_FOUND.
  absl::StatusOr<std::unique_ptr<ImageFile>> Link(const std::string& path) LORRY_EXCLUDES(mutex_);
  // As Acquire, of another directory's file, which loses its name there. NOT_FOUND when it is gone;
  // FAILED_PRECONDITION when it cannot be written anew, and now has no name.
  absl::StatusOr<std::unique_ptr<ImageFile>> Adopt(const std::string& path, uint64_t bytes)
      LORRY_EXCLUDES(mutex_);

  // Takes back a file that it gave, wherever it was moved to since; keeps it for reuse, or removes
  // its name where it does not fit or others use it.
  void Recycle(std::unique_ptr<ImageFile> file) LORRY_EXCLUDES(mutex_);
  // The file stays in the world under its present name but leaves the pool's account: an engine may
  // still hold it, or others share it.
  void Forget(std::unique_ptr<ImageFile> file) LORRY_EXCLUDES(mutex_);

  Counts counts() const LORRY_EXCLUDES(mutex_);
  const std::string& directory() const { return options_.directory; }

 private:
  ImagePool(Options options, FileLock lock);
  std::unique_ptr<ImageFile> TakeIdle(uint64_t bytes) LORRY_REQUIRES(mutex_);
  std::unique_ptr<ImageFile> TakeOldest() LORRY_REQUIRES(mutex_);
  std::string FreshName() LORRY_REQUIRES(mutex_);

  const Options options_;
  const FileLock lock_;
  mutable Mutex mutex_;
  std::vector<std::unique_ptr<ImageFile>> idle_ LORRY_GUARDED_BY(mutex_);  // oldest first
  Counts counts_ LORRY_GUARDED_BY(mutex_);
  uint64_t next_name_ LORRY_GUARDED_BY(mutex_) = 0;
};

}  // namespace lorry::transfer
