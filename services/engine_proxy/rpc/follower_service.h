// lorry.engine.v1.FollowerService on a node that follows, and its caller on the engine's first node.
#pragma once

#include <memory>
#include <string>

#include "lib/rpc/fresh_channel.h"
#include "lib/rpc/gate.h"
#include "lorry/engine/v1/follower.grpc.pb.h"
#include "services/engine_proxy/driver/followers.h"
#include "services/engine_proxy/follower/agent.h"

namespace lorry::proxy {

// Owned by main; gate and agent outlive it.
class FollowerService final : public engine::v1::FollowerService::Service {
 public:
  FollowerService(rpc::Gate& gate, std::string member, Agent& agent)
      : gate_(gate), member_(std::move(member)), agent_(agent) {}

  grpc::Status Follow(grpc::ServerContext* context, const engine::v1::FollowRequest* request,
                      engine::v1::FollowResponse* response) override;

 private:
  rpc::Gate& gate_;
  const std::string member_;
  Agent& agent_;
};

// Asks the follower behind `channel`, for `member`.
AskFollower MakeAskFollower(std::shared_ptr<rpc::FreshChannel> channel, std::string member);

}  // namespace lorry::proxy
