// Files for the next blobs, made ready while nobody waits: their space allocated, their pages in
// memory. What is copied into pages that nobody has touched takes the kernel up to ten times as long
// as the copy itself, and versions of one adapter have one size. Thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <thread>
#include <utility>

#include "lib/base/mutex.h"
#include "lib/blob/file.h"

namespace lorry::blob {

class SpareFiles {
 public:
  // Smaller blobs gain little.
  static constexpr uint64_t kBytesMin = uint64_t{1} << 20;

  struct Options {
    std::string directory;  // where they lie, under names that no blob has
    // Whether the disk has so many bytes to spare.
    std::function<bool(uint64_t bytes)> has_room = [](uint64_t) { return true; };
    // More is not kept; the one that was made first goes first.
    uint64_t bytes_max = uint64_t{1} << 30;
    // Those who wait for the blob that was just sealed fetch it now, and come first.
    std::chrono::milliseconds delay{1'000};
  };
  explicit SpareFiles(Options options) : options_(std::move(options)) {}
  ~SpareFiles() { Stop(); }

  // Makes one of `bytes` a little later, unless there is one, or another size is asked for
  // meanwhile. Returns at once.
  void Prepare(uint64_t bytes) LORRY_EXCLUDES(mutex_);
  // Gives the one of `bytes` the name `path`, which is free. False: there is none.
  bool Take(uint64_t bytes, const std::string& path) LORRY_EXCLUDES(mutex_);
  // Deletes them all for the space that they take. False: there were none.
  bool Drop() LORRY_EXCLUDES(mutex_);
  // Ends what is being made, and makes no more.
  void Stop() LORRY_EXCLUDES(mutex_);

 private:
  struct Spare {
    uint64_t bytes;
    std::string path;
  };
  void Run() LORRY_EXCLUDES(mutex_);
  // The size to make next, once it is time; 0: never again.
  uint64_t Next() LORRY_EXCLUDES(mutex_);
  void Make(uint64_t bytes) LORRY_EXCLUDES(mutex_);
  // False where there is one. Otherwise older ones made way for it.
  bool MayAdd(uint64_t bytes) LORRY_EXCLUDES(mutex_);
  // False: it is unwanted by now, and gone.
  bool Add(uint64_t bytes, const std::string& path) LORRY_EXCLUDES(mutex_);
  bool IsThere(uint64_t bytes) const LORRY_EXCLUDES(mutex_);

  const Options options_;
  mutable Mutex mutex_;
  std::deque<Spare> spares_ LORRY_GUARDED_BY(mutex_);  // the oldest first
  uint64_t made_ LORRY_GUARDED_BY(mutex_) = 0;
  uint64_t wanted_ LORRY_GUARDED_BY(mutex_) = 0;  // the size that was asked for last; 0: none
  bool stopping_ LORRY_GUARDED_BY(mutex_) = false;
  bool making_ LORRY_GUARDED_BY(mutex_) = false;   // the maker has a file open
  bool dropped_ LORRY_GUARDED_BY(mutex_) = false;  // and what it makes is unwanted by now
  CondVar changed_;
  std::thread maker_ LORRY_GUARDED_BY(mutex_);  // once there was something to make
};

// Deletes what a process that has ended left in `directory`.
absl::Status SweepSpareFiles(const std::string& directory);

}  // namespace lorry::blob
