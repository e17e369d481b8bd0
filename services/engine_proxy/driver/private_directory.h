// Directories that no other user of the host can put anything into, or have put there before.
// Predictable names in a directory that everybody may write to belong to whoever is first: what is
// made there is looked at before it is used. Any thread.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lorry::proxy {

// Who may read images besides this user: an engine may run as another one.
struct ImageReaders {
  mode_t directories = 0700;
  mode_t files = 0600;
  std::optional<gid_t> group;
};

// Makes `path` and what is missing above it, readable by `readers`, or takes one that is there.
// FAILED_PRECONDITION DIRECTORY_UNSAFE: it is another user's, others may write to it, or it is a
// link.
absl::Status MakePrivateDirectory(const std::string& path, const ImageReaders& readers = {});

// A directory above `path` whose entries others than its owner and root may replace; empty when
// there is none. One with the sticky bit, as /dev/shm, is none.
std::string UnsafeParentOf(const std::string& path);

// /dev/shm/lorry-<uid>.
std::string SharedMemoryDirectory();
// Where a member's images lie: `given` itself, or in a directory of our own inside it where it is
// another user's, as a mounted volume is root's; by default in shared memory.
std::string ImageRoot(const std::string& given, const std::string& member);
// Where the proxies of this user share images: `given`, or nowhere (empty) where it is "off". "auto":
// in shared memory where the member's own images, at `image_dir`, are there by default too.
std::string HostCacheRoot(const std::string& given, const std::string& image_dir);

// "owner", "all", or a group by name or number. INVALID_ARGUMENT.
absl::StatusOr<ImageReaders> ParseImageReaders(const std::string& text);
// Lets them read a file, or enter a directory, that this process made.
absl::Status OpenTo(const ImageReaders& readers, const std::string& path);

}  // namespace lorry::proxy
