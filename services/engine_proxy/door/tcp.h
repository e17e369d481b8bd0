// What a TCP socket can be asked beyond reading and writing. Linux; any thread.
#pragma once

#include <cstdint>

namespace lorry::door {

// Neither closed nor with bytes to read.
bool IsQuiet(int fd);

// All that the peer sent was read, and no more will come. A reset is left for the next read to see.
bool HasEnded(int fd);

// The peer closed, or will send nothing more; also seen behind bytes that nobody has read yet.
bool HasHungUp(int fd);

// True when the peer's host has acknowledged exactly the first `sent` bytes of this connection:
// then the peer cannot have read any byte that was written after them. False where the kernel
// does not tell.
bool AcknowledgedOnly(int fd, uint64_t sent);

// Ends the connection, with an error for whoever waits on it, once the peer's host is gone: it has
// answered no probe for 90 s, or acknowledged nothing of what was sent for `unacknowledged_ms`.
// A peer that is merely slow stays connected: its kernel answers for it.
void DetectDeadPeer(int fd, int64_t unacknowledged_ms);

}  // namespace lorry::door
