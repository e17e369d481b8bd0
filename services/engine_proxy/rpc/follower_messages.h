// Between a FollowerOrder and the messages of lorry.engine.v1.FollowerService. Pure functions, any
// thread. What does not pass FromProto is INVALID_ARGUMENT and reaches no file.
#pragma once

#include "absl/status/statusor.h"
#include "lorry/engine/v1/follower.pb.h"
#include "services/engine_proxy/driver/followers.h"

namespace lorry::proxy {

engine::v1::FollowRequest ToProto(const FollowerOrder& order);
absl::StatusOr<FollowerOrder> FromProto(const engine::v1::FollowRequest& request);

}  // namespace lorry::proxy
