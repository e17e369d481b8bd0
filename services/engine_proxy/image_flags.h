// The flags of where images lie and how they come, which a leader and its followers share. main's
// thread only.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "lib/transfer/transport_set.h"
#include "services/engine_proxy/driver/image_shelf.h"
#include "services/engine_proxy/driver/last_images.h"
#include "services/engine_proxy/driver/read_ahead.h"

namespace lorry::proxy {

// By --image-dir, --image-readers and --host-cache. As ImageShelf::Open.
absl::StatusOr<std::unique_ptr<ImageShelf>> OpenShelf(const std::string& member,
                                                      const JournalId& journal);

// By --fetch-deltas; null where it is off.
std::unique_ptr<LastImages> OpenLastImages(ImageShelf& shelf, ManifestSource source);

// By --read-ahead; null where it is off or there is no gRPC. `last` may be null.
std::unique_ptr<ReadAhead> OpenReadAhead(ImageShelf& shelf, transfer::TransportSet& transports,
                                         LastImages* last);

// By the flags of UCX; gRPC where they leave nothing else.
std::unique_ptr<transfer::TransportSet> MakeTransports();

}  // namespace lorry::proxy
