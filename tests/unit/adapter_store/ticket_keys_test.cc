#include "services/adapter_store/images/ticket_keys.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "lib/base/error.h"
#include "tests/testing/temp_dir.h"

namespace lorry::store {
namespace {

constexpr int64_t kLifeMs = 1'000;

class RotatingKeysTest : public ::testing::Test {
 public:
  std::unique_ptr<RotatingKeys> Open() {
    auto keys = RotatingKeys::Open(
        {.path = path_, .life_ms = kLifeMs, .now_unix_ms = [this] { return now_; }});
    EXPECT_TRUE(keys.ok()) << keys.status();
    return *std::move(keys);
  }
  // A ticket of one life from now.
  std::string Ticket(RotatingKeys& keys) {
    return *keys.Mint({.ticket_id = "get:1", .object = "1", .expires_unix_ms = now_ + kLifeMs});
  }
  std::string Verdict(const RotatingKeys& keys, const std::string& ticket) {
    const auto claims = keys.keys().Verify(ticket, now_);
    return claims.ok() ? "good" : ReasonOf(claims.status());
  }

  TempDir dir_;
  const std::string path_ = dir_ / "ticket.key";
  int64_t now_ = 1'000'000;
};

TEST_F(RotatingKeysTest, ATicketIsGoodForItsLifeAcrossRotations) {
  const auto keys = Open();
  now_ += kLifeMs - 1;
  const std::string ticket = Ticket(*keys);  // by a key that is about to be replaced
  now_ += kLifeMs - 1;
  Ticket(*keys);
  EXPECT_EQ(Verdict(*keys, ticket), "good");
  now_ += 1;
  EXPECT_EQ(Verdict(*keys, ticket), "TICKET_EXPIRED");
}

TEST_F(RotatingKeysTest, AKeyIsForgottenAfterTwoLives) {
  const auto keys = Open();
  const std::string ticket = Ticket(*keys);
  for (int life = 0; life < 2; ++life) {
    now_ += kLifeMs;
    Ticket(*keys);
  }
  EXPECT_EQ(Verdict(*keys, ticket), "BAD_TICKET");  // a stolen key makes nothing good any more
}

TEST_F(RotatingKeysTest, ARestartKeepsBothKeys) {
  auto keys = Open();
  const std::string older = Ticket(*keys);
  now_ += kLifeMs - 1;
  const std::string old = Ticket(*keys);
  now_ += 1;
  const std::string fresh = Ticket(*keys);
  keys = Open();
  EXPECT_EQ(Verdict(*keys, old), "good");
  EXPECT_EQ(Verdict(*keys, fresh), "good");
  EXPECT_EQ(Verdict(*keys, older), "TICKET_EXPIRED");
}

TEST_F(RotatingKeysTest, TheFileIsTheOwnersAlone) {
  const auto keys = Open();
  struct stat info = {};
  ASSERT_EQ(::stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST_F(RotatingKeysTest, AFileThatIsNoKeyMeansFreshOnes) {
  std::ofstream(path_) << "not a key";
  const auto keys = Open();
  EXPECT_EQ(Verdict(*keys, Ticket(*keys)), "good");
}

TEST_F(RotatingKeysTest, WhileNoKeyCanBeWrittenTheOldOneGoesOn) {
  auto keys = Open();
  const std::string in_the_way = path_ + ".new";
  std::filesystem::create_directory(in_the_way);
  now_ += kLifeMs;
  EXPECT_EQ(Verdict(*keys, Ticket(*keys)), "good");
  keys = Open();
  const std::string ticket = Ticket(*keys);
  EXPECT_EQ(Verdict(*keys, ticket), "good");
  std::filesystem::remove(in_the_way);
  for (int rotation = 0; rotation < 2; ++rotation) {
    now_ += 60'000;  // the file is tried again
    Ticket(*keys);
  }
  EXPECT_EQ(Verdict(*keys, ticket), "BAD_TICKET") << "its key should be forgotten";
}

TEST_F(RotatingKeysTest, AClockThatWasSetBackDoesNotKeepAKeyForEver) {
  const auto keys = Open();
  const std::string ticket = Ticket(*keys);
  now_ -= 10 * kLifeMs;
  Ticket(*keys);
  now_ += kLifeMs;
  Ticket(*keys);
  EXPECT_EQ(Verdict(*keys, ticket), "BAD_TICKET");
}

}  // namespace
}  // namespace lorry::store
