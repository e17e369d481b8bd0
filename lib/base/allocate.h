// Gives a file its blocks, so that no later write to it fails for want of room. Any thread.
#pragma once

#include <cstdint>

namespace lorry {

// Makes the open file `bytes` long at least, all of it backed by blocks. Returns 0 or an errno. What the
// file system has no room for is ENOSPC before anything is taken: posix_fallocate would first take all
// that is left, and for that moment nobody else on the disk could write.
int Allocate(int fd, uint64_t bytes);

}  // namespace lorry
