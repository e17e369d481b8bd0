#include "services/engine_proxy/rpc/follower_service.h"

#include "absl/strings/str_cat.h"
#include "lib/base/error.h"
#include "lib/rpc/channel.h"
#include "lib/rpc/status.h"
#include "services/engine_proxy/rpc/follower_messages.h"

namespace lorry::proxy {
namespace {

// Of a call's deadline, for the way back of its answer.
constexpr int64_t kAnswerMarginMs = 500;
// For the way there and back, and what a busy node takes: a follower that is suspended, or cut off,
// is told from one that works.
constexpr int64_t kRoundTripMs = 2'500;

}  // namespace

grpc::Status FollowerService::Follow(grpc::ServerContext* context,
                                     const engine::v1::FollowRequest* request,
                                     engine::v1::FollowResponse* response) {
  const auto serve = [&](const rpc::Call& call) -> absl::Status {
    if (request->member() != member_)
      return Error(
          absl::StatusCode::kFailedPrecondition, "FOLLOWER_OF_ANOTHER",
          absl::StrCat("started with --member=", member_, ", and asked for ", request->member()));
    LORRY_ASSIGN_OR_RETURN(const FollowerOrder order, FromProto(*request));
    LORRY_ASSIGN_OR_RETURN(const bool placed,
                           agent_.Follow(order, call.deadline - kAnswerMarginMs - kRoundTripMs));
    response->set_placed(placed);
    return absl::OkStatus();
  };
  return gate_.Serve(*context, "Follow", rpc::Role::kEngine, serve,
                     {.effort = rpc::Effort::kWaits});
}

AskFollower MakeAskFollower(std::shared_ptr<rpc::FreshChannel> channel, std::string member) {
  return [channel = std::move(channel), member = std::move(member)](
             const FollowerOrder& order, int64_t wait_ms) -> absl::StatusOr<bool> {
    engine::v1::FollowRequest request = ToProto(order);
    request.set_member(member);
    engine::v1::FollowResponse response;
    grpc::ClientContext context;
    rpc::SetDeadlineIn(context, wait_ms + kAnswerMarginMs + kRoundTripMs);
    const absl::Status status = rpc::FromGrpc(
        engine::v1::FollowerService::NewStub(channel->Get())->Follow(&context, request, &response));
    if (status.ok()) return response.placed();
    // Reasons come from a node that answers: its store is busy, or its disk fails. One that is
    // shutting down will not answer the next call.
    const std::string reason = ReasonOf(status);
    const bool gone = absl::IsUnavailable(status) && (reason.empty() || reason == "SHUTTING_DOWN");
    if (!gone && !absl::IsDeadlineExceeded(status)) return status;
    return Error(absl::StatusCode::kUnavailable, "FOLLOWER_UNANSWERED",
                 std::string(status.message()));
  };
}

}  // namespace lorry::proxy
