#include "lib/metrics/admin_server.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <spdlog/sinks/base_sink.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <ctime>
#include <mutex>
#include <utility>
#include <vector>

#include "lib/base/error.h"
#include "tests/testing/captured_log.h"
#include "tests/testing/eventually.h"

namespace lorry::metrics {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// Sends `request`, returns all that comes back until the server closes.
std::string Exchange(int port, const std::string& request) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in to{.sin_family = AF_INET, .sin_port = htons(static_cast<uint16_t>(port))};
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::string reply;
  if (connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0 &&
      send(fd, request.data(), request.size(), MSG_NOSIGNAL) > 0) {
    char buffer[4096];
    for (ssize_t n; (n = read(fd, buffer, sizeof(buffer))) > 0;)
      reply.append(buffer, static_cast<size_t>(n));
  }
  close(fd);
  return reply;
}
std::string Get(const AdminServer& server, const std::string& path) {
  return Exchange(server.port(),
                  "GET " + path + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
}

// How many lines were logged, while they are.
class CountedLines final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  std::atomic<int> said = 0;

 private:
  void sink_it_(const spdlog::details::log_msg&) override { ++said; }
  void flush_() override {}
};

class AdminServerTest : public testing::Test {
 protected:
  std::unique_ptr<AdminServer> Start(AdminOptions options = {}) {
    auto server = AdminServer::Start(std::move(options), registry_);
    EXPECT_TRUE(server.ok()) << server.status();
    return *std::move(server);
  }
  Registry registry_{{.service = "test", .version = "0"}};
};

TEST_F(AdminServerTest, ServesMetrics) {
  registry_.AddCounter("lorry_test_total", "Things").Add(3);
  const std::string reply = Get(*Start(), "/metrics");
  EXPECT_THAT(reply, StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(reply, HasSubstr("lorry_test_total 3"));
}

TEST_F(AdminServerTest, SaysWhereItIsReached) {
  const auto at = [&](const char* address) {
    const auto server = Start({.address = address});
    return std::pair(server->address(), std::to_string(server->port()));
  };
  for (const auto& [asked, said] : {std::pair{"127.0.0.2:0", "127.0.0.2:"},
                                    {"0.0.0.0:0", "127.0.0.1:"},
                                    {"[::1]:0", "[::1]:"},
                                    {"[::]:0", "127.0.0.1:"}}) {
    const auto [address, port] = at(asked);
    EXPECT_EQ(address, said + port) << asked;
  }
}

// The admin port asks nobody who they are: an operator must hear that it can be reached.
TEST_F(AdminServerTest, WarnsWhoListensOffLoopback) {
  const auto logged = [&](const char* address) {
    const CapturedLog log;
    Start({.address = address});
    return log.text();
  };
  for (const std::string address : {"0.0.0.0:0", "[::]:0"}) {
    EXPECT_THAT(logged(address.c_str()),
                testing::AllOf(HasSubstr("[warning]"), HasSubstr("listens on " + address)));
  }
  EXPECT_EQ(logged("127.0.0.1:0"), "");
  EXPECT_EQ(logged("[::1]:0"), "");
}

TEST_F(AdminServerTest, ListensOnBothFamiliesAtOnce) {
  const auto server = Start({.address = "[::]:0"});  // asked over IPv4 below
  EXPECT_THAT(Get(*server, "/livez"), StartsWith("HTTP/1.1 200"));
}

TEST_F(AdminServerTest, LivenessAndReadinessAreTwoThings) {
  std::atomic<bool> ready = false;
  const auto server = Start({.ready = [&] {
    return ready ? absl::OkStatus()
                 : Error(absl::StatusCode::kUnavailable, "", "restoring the journal");
  }});
  EXPECT_THAT(Get(*server, "/livez"), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(Get(*server, "/readyz"),
              testing::AllOf(StartsWith("HTTP/1.1 503"), HasSubstr("restoring the journal")));
  ready = true;
  EXPECT_THAT(Get(*server, "/readyz?verbose"), StartsWith("HTTP/1.1 200"));
}

TEST_F(AdminServerTest, ShowsConfigAndPages) {
  const auto server = Start({.config_json = [] { return std::string("{\"port\": 1}"); },
                             .pages = {{"/statusz", [] { return Page{.body = "fine"}; }}}});
  EXPECT_THAT(Get(*server, "/configz"), HasSubstr("{\"port\": 1}"));
  EXPECT_THAT(Get(*server, "/statusz"), HasSubstr("fine"));
  EXPECT_THAT(Get(*server, "/other"),
              testing::AllOf(StartsWith("HTTP/1.1 404"), HasSubstr("/statusz")));
}

TEST_F(AdminServerTest, RefusesWhatItDoesNotServe) {
  const auto server = Start();
  EXPECT_THAT(
      Exchange(server->port(), "POST /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"),
      StartsWith("HTTP/1.1 405"));
  EXPECT_EQ(Exchange(server->port(), "nonsense\r\n\r\n"), "");
  EXPECT_EQ(Exchange(server->port(), "GET /" + std::string(20'000, 'x')), "");
  EXPECT_THAT(Get(*server, "/livez"), StartsWith("HTTP/1.1 200")) << "and goes on";
}

TEST_F(AdminServerTest, ASilentConnectionHoldsNobodyUp) {
  const auto server = Start();
  const int silent = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in to{.sin_family = AF_INET, .sin_port = htons(static_cast<uint16_t>(server->port()))};
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(connect(silent, reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
  EXPECT_THAT(Get(*server, "/livez"), StartsWith("HTTP/1.1 200"));
  close(silent);
}

TEST_F(AdminServerTest, ACrowdOfSilentConnectionsLocksNobodyOut) {
  const auto server = Start();
  sockaddr_in to{.sin_family = AF_INET, .sin_port = htons(static_cast<uint16_t>(server->port()))};
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::vector<int> crowd(200);
  for (int& fd : crowd) {
    fd = socket(AF_INET, SOCK_STREAM, 0);
    ASSERT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
  }
  EXPECT_THAT(Get(*server, "/livez"), StartsWith("HTTP/1.1 200"));
  for (const int fd : crowd) close(fd);
}

// A connection that cannot be taken in stays in the queue, so that asking for it again and again
// would take a whole core from a process that is in need already.
TEST_F(AdminServerTest, WithoutAFreeDescriptorItPausesAndSaysSoOnce) {
  const auto lines = std::make_shared<CountedLines>();
  const auto log = spdlog::default_logger();
  spdlog::set_default_logger(std::make_shared<spdlog::logger>("test", lines));
  auto server = Start();
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{.rlim_cur = 0, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  sockaddr_in to{.sin_family = AF_INET, .sin_port = htons(static_cast<uint16_t>(server->port()))};
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
  EXPECT_TRUE(Eventually([&] { return lines->said > 0; }, std::chrono::seconds(20)));
  const std::clock_t used = std::clock();
  EXPECT_EQ(poll(nullptr, 0, 400), 0);
  EXPECT_LT(std::clock() - used, CLOCKS_PER_SEC / 20)
      << "of the processor: it asks without a pause";
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_THAT(Get(*server, "/livez"), StartsWith("HTTP/1.1 200")) << "and goes on";
  close(fd);
  server.reset();
  spdlog::set_default_logger(log);
  EXPECT_EQ(lines->said, 1);
}

TEST_F(AdminServerTest, AnAddressThatCannotBeIsAnError) {
  const auto first = Start();
  const auto taken =
      AdminServer::Start({.address = "127.0.0.1:" + std::to_string(first->port())}, registry_);
  EXPECT_EQ(ReasonOf(taken.status()), "LISTEN_FAILED");
  EXPECT_EQ(AdminServer::Start({.address = "nowhere"}, registry_).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace lorry::metrics
