// Which lines name the peers whose transfers failed.
#include "services/adapter_store/transfer_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "lib/base/error.h"
#include "tests/testing/captured_log.h"

namespace lorry::store {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class TransferLogTest : public ::testing::Test {
 protected:
  void Fail(std::string_view peer, std::string_view reason = "RANGE_CORRUPT") {
    log_.OnFailed({.transport = "grpc",
                   .peer = peer,
                   .object = "u7",
                   .why = Error(absl::StatusCode::kDataLoss, reason, "a range differs")});
  }
  int Lines() const {
    const std::string text = captured_.text();
    return static_cast<int>(std::ranges::count(text, '\n'));
  }

  const CapturedLog captured_;
  ManualClock clock_;
  TransferLog log_{clock_};
};

TEST_F(TransferLogTest, NamesThePeerTheObjectAndTheReason) {
  Fail("ipv6:[fd00::7]:4711");
  EXPECT_THAT(captured_.text(), AllOf(HasSubstr("peer=ipv6:[fd00::7] "), HasSubstr("object=u7 "),
                                      HasSubstr("RANGE_CORRUPT a range differs")));
}

TEST_F(TransferLogTest, SaysOneLineAMinuteOfEachHostAndReason) {
  Fail("ipv4:10.0.0.7:4711");
  Fail("ipv4:10.0.0.7:4712");
  Fail("ipv4:10.0.0.7:4713");
  EXPECT_EQ(Lines(), 1) << "another port is the same host";
  Fail("ipv4:10.0.0.8:4711");
  Fail("ipv4:10.0.0.7:4711", "RANGE_CONFLICT");
  EXPECT_EQ(Lines(), 3);
  clock_.Advance(60'000);
  Fail("ipv4:10.0.0.7:4714");
  EXPECT_EQ(Lines(), 4);
  EXPECT_THAT(captured_.text(), HasSubstr("(2 more since the last line)"));
}

}  // namespace
}  // namespace lorry::store
