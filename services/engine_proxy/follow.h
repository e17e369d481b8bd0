// `engine-proxy --follow`: the program on the other nodes of an engine that runs on several; and what
// the engine's own engine-proxy, the leader, needs to know of them. main's thread only.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/runtime/signals.h"
#include "services/engine_proxy/driver/followers.h"

namespace lorry::proxy {

bool IsFollower();  // --follow
absl::Status RunFollower(runtime::Signals& signals);

// On how many nodes a version is placed, by --followers; 0: all, by --image-dir-shared.
uint64_t NodesServed();

// --followers of this leader.
absl::StatusOr<std::vector<Follower>> FollowerFlags(const std::string& member);

}  // namespace lorry::proxy
