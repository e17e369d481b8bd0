#include "lib/rpc/status.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/escaping.h"
#include "lib/base/error.h"

namespace lorry::rpc {
namespace {

using ::testing::IsEmpty;

TEST(RpcStatus, OkStaysOk) {
  EXPECT_TRUE(ToGrpc(absl::OkStatus()).ok());
  EXPECT_TRUE(FromGrpc(grpc::Status::OK).ok());
}

TEST(RpcStatus, CodeMessageAndReasonSurviveTheWire) {
  for (int code = 1; code <= 16; ++code) {
    const absl::Status before =
        Error(static_cast<absl::StatusCode>(code), "SOME_REASON", "what happened");
    const absl::Status after = FromGrpc(ToGrpc(before));
    EXPECT_EQ(after.code(), before.code());
    EXPECT_EQ(after.message(), "what happened");
    EXPECT_EQ(ReasonOf(after), "SOME_REASON");
  }
}

TEST(RpcStatus, NoReasonMeansNoDetails) {
  EXPECT_THAT(ToGrpc(absl::InternalError("x")).error_details(), IsEmpty());
  EXPECT_EQ(ReasonOf(FromGrpc(grpc::Status(grpc::StatusCode::UNAVAILABLE, "x"))), "");
}

// Bytes as googleapis' own protobuf classes serialise them: Status{3, "m", [Any(ErrorInfo{"R",
// "lorry"})]}.
TEST(RpcStatus, DetailsAreThoseOfGoogleRpc) {
  const grpc::Status status = ToGrpc(Error(absl::StatusCode::kInvalidArgument, "R", "m"));
  EXPECT_EQ(
      absl::BytesToHexString(status.error_details()),
      "080312016d1a360a28747970652e676f6f676c65617069732e636f6d2f676f6f676c652e7270632e4572726f72"
      "496e666f120a0a015212056c6f727279");
}

TEST(RpcStatus, DetailsOfStrangersAreIgnored) {
  const std::string details =
      ToGrpc(Error(absl::StatusCode::kAborted, "LORRY", "m")).error_details();
  std::string other_domain = details;
  other_domain.replace(other_domain.find("lorry"), 5, "other");
  EXPECT_EQ(ReasonOf(FromGrpc(grpc::Status(grpc::StatusCode::ABORTED, "m", other_domain))), "");
  EXPECT_EQ(ReasonOf(FromGrpc(grpc::Status(grpc::StatusCode::ABORTED, "m", "\xff\xff garbage"))),
            "");
  for (size_t cut = 0; cut < details.size(); ++cut) {
    const absl::Status status =
        FromGrpc(grpc::Status(grpc::StatusCode::ABORTED, "m", details.substr(0, cut)));
    EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  }
}

TEST(RpcStatus, ACodeThatDoesNotExistIsUnknown) {
  EXPECT_EQ(FromGrpc(grpc::Status(static_cast<grpc::StatusCode>(77), "x")).code(),
            absl::StatusCode::kUnknown);
}

TEST(RpcStatus, LongErrorsFitTheMetadataLimit) {
  const grpc::Status status =
      ToGrpc(Error(absl::StatusCode::kInternal, "LONG", std::string(100'000, 'x')));
  EXPECT_LT(status.error_message().size() + status.error_details().size(), 8192u);
  EXPECT_EQ(ReasonOf(FromGrpc(status)), "LONG");
}

TEST(RpcStatus, ReasonsSurviveWordsThatAreNotUtf8OrAreCutWithinACharacter) {
  const absl::Status raw = FromGrpc(ToGrpc(Error(absl::StatusCode::kInternal, "RAW", "caf\xe9")));
  EXPECT_EQ(ReasonOf(raw), "RAW");
  EXPECT_EQ(raw.message(), "caf\uFFFD");
  const std::string most(2'047, 'x');
  const absl::Status cut = FromGrpc(ToGrpc(Error(absl::StatusCode::kInternal, "CUT", most + "é")));
  EXPECT_EQ(ReasonOf(cut), "CUT");
  EXPECT_EQ(cut.message(), most);
}

TEST(RpcStatus, ACallThatAServiceDoesNotHaveIsSaidInWords) {
  const absl::Status silent = FromGrpc(grpc::Status(grpc::StatusCode::UNIMPLEMENTED, ""));
  EXPECT_TRUE(absl::IsUnimplemented(silent));
  EXPECT_NE(std::string(silent.message()).find("no such call"), std::string::npos);
  const absl::Status said = FromGrpc(grpc::Status(grpc::StatusCode::UNIMPLEMENTED, "not for GPUs"));
  EXPECT_EQ(said.message(), "not for GPUs");
}

}  // namespace
}  // namespace lorry::rpc
