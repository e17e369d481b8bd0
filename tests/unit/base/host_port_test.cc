#include "lib/base/host_port.h"

#include <gtest/gtest.h>

namespace lorry {
namespace {

TEST(HostPort, ReadsNamesAndBothFamiliesOfAddresses) {
  const std::pair<const char*, HostPort> cases[] = {{"127.0.0.1:9", {"127.0.0.1", 9}},
                                                    {"store.fleet.svc:0", {"store.fleet.svc", 0}},
                                                    {"[fd00::1]:65535", {"fd00::1", 65535}},
                                                    {"[fd00::7]:80", {"fd00::7", 80}}};
  for (const auto& [text, wanted] : cases) {
    const absl::StatusOr<HostPort> parsed = ParseHostPort(text, "--listen");
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(parsed->host, wanted.host);
    EXPECT_EQ(parsed->port, wanted.port);
    EXPECT_EQ(parsed->ToString(), text);
  }
}

TEST(HostPort, RefusesWhatIsNoneAndNamesTheFlag) {
  for (const char* text :
       {"", "host", ":80", "host:", "host:-1", "host:65536", "host:http", "::1:9", "[]:80"}) {
    const absl::StatusOr<HostPort> parsed = ParseHostPort(text, "--listen");
    ASSERT_FALSE(parsed.ok()) << text;
    EXPECT_EQ(parsed.status().message().find("--listen"), 0u) << parsed.status();
  }
}

TEST(HostPort, KnowsWhatStandsForEveryAddress) {
  for (const char* text : {"0.0.0.0:9", "[::]:9"}) {
    EXPECT_TRUE(ParseHostPort(text, "")->IsWildcard()) << text;
  }
  for (const char* text : {"127.0.0.1:9", "[::1]:9", "name:80"}) {
    EXPECT_FALSE(ParseHostPort(text, "")->IsWildcard()) << text;
  }
}

}  // namespace
}  // namespace lorry
