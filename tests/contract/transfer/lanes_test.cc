// What carries the bytes, who may have it carried so, and what is used where that does not work.
#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <set>
#include <sstream>

#include "lib/transfer/transport_set.h"
#include "lib/transfer/ucx/transports.h"
#include "tests/contract/transfer/child.h"
#include "tests/contract/transfer/kinds.h"

namespace lorry::transfer {
namespace {

using absl::StatusCode;

constexpr uint64_t kSize = 64 * kMiB;

// Bytes that a fetch of kSize sends over a loopback device that nobody else has; -1 where this
// process may not have one.
int64_t BytesOverLoopback(const std::string& kind) {
  Child peer({LORRY_TRANSFER_PEER, "alone", kind, std::to_string(kSize), "1"});
  const std::string line = peer.ReadLine();
  if (line == "none") return -1;
  return line.empty() ? int64_t{1} << 40 : std::stoll(line);
}

TEST(Lanes, SharedMemoryCarriesTheBytesAndLoopbackDoesNot) {
  const int64_t by_grpc = BytesOverLoopback("grpc");
  if (by_grpc < 0) GTEST_SKIP() << "no network namespace to be had";
  EXPECT_GT(by_grpc, static_cast<int64_t>(kSize));  // so the counter counts
  const int64_t by_ucx = BytesOverLoopback("ucx-shm");
  EXPECT_LT(by_ucx, static_cast<int64_t>(kSize / 100));
  std::printf("%lld of %llu bytes went over lo\n", static_cast<long long>(by_ucx),
              static_cast<unsigned long long>(kSize));
}

// What an operator declares is what carries the bytes: UCX by TCP, on that device.
TEST(Lanes, ADeclaredDeviceCarriesTheBytes) {
  const int64_t by_tcp = BytesOverLoopback("ucx-net");
  if (by_tcp < 0) GTEST_SKIP() << "no network namespace to be had";
  EXPECT_GT(by_tcp, static_cast<int64_t>(kSize));
  EXPECT_LT(by_tcp, static_cast<int64_t>(kSize + kSize / 4)) << "as if it went twice";
}

// Nobody is talked into a network lane: both sides have to declare it.
TEST(Lanes, ADeviceThatOnlyOneSideDeclaresIsNotUsed) {
  TestHandler handler;
  const auto keys = TestKeys();
  const auto server = StartBoth(*keys, handler, handler);
  handler.Serve("image", MakeImage(kMiB));
  Bytes into(kMiB);
  const Outcome outcome = FetchAndWait(*CreateTransport("ucx-net"),
                                       {.address = server->address(),
                                        .ticket = TicketFor(*keys, Direction::kGet, "image", kMiB),
                                        .destination = into});
  EXPECT_EQ(outcome.status.code(), StatusCode::kUnavailable) << outcome.status;
  EXPECT_EQ(outcome.bytes, 0u);
}

struct InetSocket {
  int local_port, remote_port;
};

// This process's TCP sockets, of both families.
std::vector<InetSocket> InetSockets() {
  std::set<std::string> ours;
  DIR* descriptors = opendir("/proc/self/fd");
  while (const dirent* entry = readdir(descriptors)) {
    char target[64] = {};
    const std::string path = std::string("/proc/self/fd/") + entry->d_name;
    if (readlink(path.c_str(), target, sizeof(target) - 1) <= 0) continue;
    const std::string name(target);
    if (name.starts_with("socket:[")) ours.insert(name.substr(8, name.size() - 9));
  }
  closedir(descriptors);
  std::vector<InetSocket> sockets;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream file(table);
    for (std::string line; std::getline(file, line);) {
      std::istringstream words(line);
      std::vector<std::string> word(10);
      for (std::string& each : word) words >> each;
      if (!ours.contains(word[9])) continue;
      const auto port = [](const std::string& address) {
        return std::stoi(address.substr(address.rfind(':') + 1), nullptr, 16);
      };
      sockets.push_back({port(word[1]), port(word[2])});
    }
  }
  return sockets;
}

TEST(Lanes, NoSocketButGrpcsIsThere) {
  World world("ucx-shm");
  world.handler.Serve("image", MakeImage(kSize));
  Bytes into(kSize);
  const std::string& address = world.server->address();
  const int port = std::stoi(address.substr(address.rfind(':') + 1));
  std::atomic<int> looks = 0;
  const Outcome outcome =
      FetchAndWait(*world.transport, world.FetchOf("image", into), [&](const Range&, auto) {
        const auto sockets = InetSockets();
        if (!sockets.empty()) ++looks;
        for (const InetSocket& each : sockets) {
          EXPECT_TRUE(each.local_port == port || each.remote_port == port)
              << each.local_port << " to " << each.remote_port;
        }
      });
  EXPECT_THAT(outcome, EndsWell());
  EXPECT_GT(looks, 0);
}

TEST(Lanes, AnEnvironmentOpensNoLane) {
  setenv("UCX_TLS", "tcp", 1);
  const int64_t by_ucx = BytesOverLoopback("ucx-shm");
  unsetenv("UCX_TLS");
  if (by_ucx < 0) GTEST_SKIP() << "no network namespace to be had";
  EXPECT_LT(by_ucx, static_cast<int64_t>(kSize / 100));
}

TEST(Lanes, AnotherUserGetsNoSharedMemory) {
  if (geteuid() != 0) GTEST_SKIP() << "only root becomes another user";
  World world("ucx-shm");
  world.handler.Serve("image", MakeImage(kMiB));
  const std::vector<std::string> fetch = {LORRY_TRANSFER_PEER,  "fetch", "ucx-shm",
                                          std::to_string(kMiB), "1",     world.server->address()};
  setenv("LORRY_PEER_UID", "65534", 1);
  Child stranger(fetch);
  unsetenv("LORRY_PEER_UID");
  EXPECT_TRUE(stranger.ReadLine().starts_with("UNAVAILABLE: the server is not of this user"));
  EXPECT_EQ(world.server->stats().bytes_sent, 0u);
  EXPECT_EQ(Child(fetch).ReadLine(), "OK");
}

std::unique_ptr<TransportSet> AllTransports() {
  return CreateTransports({}, std::make_shared<Channels>());
}

Outcome FetchBy(TransportSet& set, const std::string& address, FetchRequest request) {
  std::promise<Outcome> ended;
  const std::vector<Source> sources = {{address, request.ticket}};
  const auto transfer = set.Fetch(sources, std::move(request), {},
                                  [&](Outcome outcome) { ended.set_value(std::move(outcome)); });
  return ended.get_future().get();
}

class Falling : public testing::Test {
 public:
  Falling() { by_grpc_.Serve("image", MakeImage(kMiB)); }
  Outcome Fetch(TransferServer& server) {
    Bytes into(kMiB);
    const auto set = AllTransports();
    const Outcome outcome =
        FetchBy(*set, server.address(),
                {.ticket = TicketFor(*keys_, Direction::kGet, "image", kMiB), .destination = into});
    EXPECT_TRUE(!outcome.status.ok() || into == MakeImage(kMiB));
    return outcome;
  }
  const std::unique_ptr<TicketKeys> keys_ = TestKeys();
  TestHandler by_ucx_, by_grpc_;
};

TEST_F(Falling, SharedMemoryComesFirst) {
  by_ucx_.Serve("image", MakeImage(kMiB));
  const auto server = StartBoth(*keys_, by_ucx_, by_grpc_);
  const Outcome outcome = Fetch(*server);
  EXPECT_THAT(outcome, EndsWell());
  EXPECT_EQ(outcome.transport, "ucx-shm");
}

TEST_F(Falling, ALaneOnWhichNothingMovesIsLeftForGrpc) {
  by_ucx_.AnswerNothing();
  const auto server = StartBoth(*keys_, by_ucx_, by_grpc_);
  const Outcome outcome = Fetch(*server);
  EXPECT_THAT(outcome, EndsWell());
  EXPECT_EQ(outcome.transport, "grpc");
  by_ucx_.AnswerLate(absl::CancelledError("the test is over"));
}

TEST_F(Falling, AServerWithoutUcxIsServedByGrpc) {
  const auto server = StartServer("grpc", {}, *keys_, by_grpc_);
  const Outcome outcome = Fetch(*server);
  EXPECT_THAT(outcome, EndsWell());
  EXPECT_EQ(outcome.transport, "grpc");
}

}  // namespace
}  // namespace lorry::transfer
