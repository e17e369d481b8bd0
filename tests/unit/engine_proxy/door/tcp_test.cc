// What a peer acknowledged, and that it hung up, as the kernel tells it.
#include "services/engine_proxy/door/tcp.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <optional>
#include <string>
#include <utility>

#include "services/engine_proxy/door/net.h"
#include "tests/unit/engine_proxy/door/harness.h"

namespace lorry::door {
namespace {

using testing::Eventually;
using testing::Wire;

// Two ends of one TCP connection on loopback.
std::pair<Wire, Wire> Ends() {
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&at), sizeof(at)), 0);
  EXPECT_EQ(::listen(listener, 1), 0);
  socklen_t size = sizeof(at);
  ::getsockname(listener, reinterpret_cast<sockaddr*>(&at), &size);
  Wire near = Wire::Connect(ntohs(at.sin_port));
  Wire far(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
  ::close(listener);
  return {std::move(near), std::move(far)};
}

// A socket of the door's at this end.
struct Timed {
  explicit Timed(const Wire& end) : socket(sweeper, Taken(end)) {}
  Socket Taken(const Wire& end) {
    Socket taken(io.get_executor());
    taken.assign(Tcp::v4(), ::dup(end.fd()));
    return taken;
  }
  asio::io_context io{1};
  Sweeper sweeper;
  TimedSocket socket;
};

TEST(Tcp, TellsWhetherThePeerCanHaveReadWhatWasSentLast) {
  auto [near, far] = Ends();
  near.Send("first");
  EXPECT_EQ(far.ReadExactly(5), "first");
  far.Send("reply");
  EXPECT_EQ(near.ReadExactly(5), "reply");
  EXPECT_TRUE(Eventually([&] { return AcknowledgedOnly(near.fd(), 5); }));

  far.Close();
  ASSERT_TRUE(near.AtEnd());
  near.Send("second");  // arrives at a socket that nobody has
  EXPECT_TRUE(AcknowledgedOnly(near.fd(), 5));
}

TEST(Tcp, TellsThatThePeerMayHaveReadWhatWasSentBeforeItEnded) {
  auto [near, far] = Ends();
  near.Send("first");
  EXPECT_EQ(far.ReadExactly(5), "first");
  far.Close();
  ASSERT_TRUE(near.AtEnd());
  EXPECT_FALSE(AcknowledgedOnly(near.fd(), 0));
}

// Where bytes had just come when the limit passed, nothing waits that could be ended: what waits next
// is, so that nobody holds a connection for ever by sending at the right moment.
TEST(TimedSocket, ALimitThatHasPassedEndsWhatBeginsAfterIt) {
  auto [near, far] = Ends();
  Timed on(near);
  auto& [io, sweeper, timed] = on;
  timed.ExpireIn(1);
  ASSERT_TRUE(Eventually([&] {
    sweeper.Sweep();
    return timed.expired();
  }));
  char byte;
  ErrorCode ended;
  timed.socket().async_read_some(asio::buffer(&byte, 1),
                                 [&](const ErrorCode& error, size_t) { ended = error; });
  io.poll();
  EXPECT_FALSE(ended);
  sweeper.Sweep();
  io.poll();
  EXPECT_EQ(ended, asio::error::operation_aborted);
}

// One event tells of both, and the read that takes the byte takes all: the sweep finds the end, and
// leaves it to the next read to say which one it was. A reset is none of a reply that ends with its
// connection.
TEST(TimedSocket, AResetThatCameWithTheLastBytesIsReadAsOne) {
  for (const bool is_reset : {true, false}) {
    auto [near, far] = Ends();
    Timed on(near);
    auto& [io, sweeper, timed] = on;
    char room[8];
    std::optional<ErrorCode> ended;
    const auto read = [&] {
      ended.reset();
      timed.Read(asio::buffer(room))([&](Transferred result) { ended = std::get<0>(result); });
      io.restart();
      io.poll();
    };
    read();  // waits for the event
    EXPECT_FALSE(ended);
    far.Send("x");
    is_reset ? far.Reset() : far.Close();
    ASSERT_TRUE(Eventually([&] { return HasHungUp(near.fd()); }));
    io.poll();
    EXPECT_EQ(ended, ErrorCode());
    read();
    EXPECT_FALSE(ended) << "there is no second event";
    sweeper.Sweep();
    io.poll();
    EXPECT_EQ(ended, is_reset ? ErrorCode(asio::error::connection_reset) : asio::error::eof);
  }
}

TEST(Tcp, SeesAHangUpBehindUnreadBytes) {
  auto [near, far] = Ends();
  EXPECT_TRUE(IsQuiet(near.fd()));
  far.Send("unread");
  EXPECT_TRUE(Eventually([&] { return !IsQuiet(near.fd()); }));
  EXPECT_FALSE(HasHungUp(near.fd()));
  far.HalfClose();
  EXPECT_TRUE(Eventually([&] { return HasHungUp(near.fd()); }));
}

TEST(Tcp, SeesTheEndOnceEverythingIsRead) {
  auto [near, far] = Ends();
  EXPECT_FALSE(HasEnded(near.fd()));
  far.Send("unread");
  far.HalfClose();
  EXPECT_TRUE(Eventually([&] { return HasHungUp(near.fd()); }));
  EXPECT_FALSE(HasEnded(near.fd()));
  EXPECT_EQ(near.ReadExactly(6), "unread");
  EXPECT_TRUE(HasEnded(near.fd()));
  auto [reset, by] = Ends();
  by.Reset();
  EXPECT_TRUE(Eventually([&] { return HasEnded(reset.fd()); }));
}

// The engine's host may vanish in the middle of an answer that takes hours: its silence is noticed,
// that of a live engine is not.
TEST(Tcp, ProbesAPeerThatIsSilent) {
  auto [near, far] = Ends();
  DetectDeadPeer(near.fd(), 60'000);
  const auto option = [&](int level, int name) {
    int value = 0;
    socklen_t size = sizeof(value);
    EXPECT_EQ(::getsockopt(near.fd(), level, name, &value, &size), 0);
    return value;
  };
  EXPECT_EQ(option(SOL_SOCKET, SO_KEEPALIVE), 1);
  const int probes_s = option(IPPROTO_TCP, TCP_KEEPIDLE) +
                       option(IPPROTO_TCP, TCP_KEEPINTVL) * option(IPPROTO_TCP, TCP_KEEPCNT);
  EXPECT_LE(probes_s, 90);
  EXPECT_GE(option(IPPROTO_TCP, TCP_USER_TIMEOUT), probes_s * 1'000);
}

}  // namespace
}  // namespace lorry::door
