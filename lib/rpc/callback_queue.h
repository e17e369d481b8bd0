// gRPC's queue for callback calls, kept for the life of the process.
#pragma once

namespace lorry::rpc {

// Call it before the first channel or server of the callback API. gRPC 1.51 has one such queue in a
// process, counts the channels and servers that use it, and takes it down with the last of them:
// one of its threads then sometimes drops a reference twice and aborts the process ("assertion
// failed: prior > 0", ref_counted.h; met elsewhere too, couchbase/couchbase-cxx-client#1060). One
// user that never goes keeps it from ever being taken down.
void HoldCallbackQueue();

}  // namespace lorry::rpc
