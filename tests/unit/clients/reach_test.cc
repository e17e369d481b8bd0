#include "clients/cli/reach.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <thread>

namespace lorry::cli {
namespace {

// Takes connections and ends each at once, as a proxy before a service that is away does.
class HangsUp {
 public:
  HangsUp() : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in at{.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof(at);
    EXPECT_EQ(::bind(listener_, reinterpret_cast<sockaddr*>(&at), size), 0);
    EXPECT_EQ(::listen(listener_, 16), 0);
    ::getsockname(listener_, reinterpret_cast<sockaddr*>(&at), &size);
    address_ = "127.0.0.1:" + std::to_string(ntohs(at.sin_port));
    thread_ = std::thread([this] {
      for (int fd = 0; (fd = ::accept(listener_, nullptr, nullptr)) >= 0;) ::close(fd);
    });
  }
  ~HangsUp() {
    ::shutdown(listener_, SHUT_RDWR);
    thread_.join();
    ::close(listener_);
  }
  const std::string& address() const { return address_; }

 private:
  const int listener_;
  std::string address_;
  std::thread thread_;
};

// What is written to a connection that has ended is no reason to die of SIGPIPE. Whether it ends
// before or after the first write is the kernel's to choose.
TEST(Reach, SurvivesAServerThatHangsUp) {
  const HangsUp server;
  constexpr int kTries = 50;
  for (int i = 0; i < kTries; ++i) EXPECT_TRUE(CheckTls(server.address(), {}).ok());
}

}  // namespace
}  // namespace lorry::cli
