// What a follower's answer means to the leader that asked it.
#include "services/engine_proxy/rpc/follower_service.h"

#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>

#include "lib/base/error.h"
#include "lib/rpc/status.h"

namespace lorry::proxy {
namespace {

// A node that answers each call so.
class Node final : public engine::v1::FollowerService::Service {
 public:
  explicit Node(grpc::Status answer) : answer_(std::move(answer)) {
    grpc::ServerBuilder builder;
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  absl::Status Ask() {
    const AskFollower ask = MakeAskFollower(
        std::make_shared<rpc::FreshChannel>(server_->InProcessChannel({}), [] { return nullptr; }),
        "member");
    return ask({.journal = JournalId("j1"), .life = "a", .revision = 1, .paths = {}, .place = {}},
               /*wait_ms=*/30'000)
        .status();
  }

 private:
  grpc::Status Follow(grpc::ServerContext*, const engine::v1::FollowRequest*,
                      engine::v1::FollowResponse*) override {
    return answer_;
  }
  const grpc::Status answer_;
  std::unique_ptr<grpc::Server> server_;
};

TEST(AskFollower, ANodeThatSaysWhatItLacksIsNotSilent) {
  for (const char* reason :
       {"FETCH_UNANSWERED", "TOO_MANY_SESSIONS", "SERVER_BUSY", "DISK_FAILED"}) {
    const absl::Status said = Error(absl::StatusCode::kUnavailable, reason, "why");
    const absl::Status heard = Node(rpc::ToGrpc(said)).Ask();
    EXPECT_TRUE(absl::IsUnavailable(heard)) << heard;
    EXPECT_EQ(ReasonOf(heard), reason);
  }
}

TEST(AskFollower, ANodeThatCannotBeReachedOrLeavesIsSilent) {
  for (const grpc::Status& said : {grpc::Status(grpc::StatusCode::UNAVAILABLE, "refused"),
                                   grpc::Status(grpc::StatusCode::DEADLINE_EXCEEDED, "no answer"),
                                   rpc::ToGrpc(rpc::ShuttingDown())}) {
    const absl::Status heard = Node(said).Ask();
    EXPECT_TRUE(absl::IsUnavailable(heard)) << heard;
    EXPECT_EQ(ReasonOf(heard), "FOLLOWER_UNANSWERED") << said.error_message();
  }
}

}  // namespace
}  // namespace lorry::proxy
