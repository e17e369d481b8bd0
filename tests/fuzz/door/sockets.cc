#include "tests/fuzz/door/sockets.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "lib/base/check.h"

namespace lorry::door::fuzz {
namespace {

sockaddr_in Loopback(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

bool WouldBlock() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

}  // namespace

Link::Link(int fd) : fd_(fd) {
  ::fcntl(fd, F_SETFL, O_NONBLOCK);
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

Link Link::Connect(uint16_t port) {
  const sockaddr_in address = Loopback(port);
  for (;;) {
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    // The kernel accepts at once, up to the listener's backlog.
    if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) {
      return Link(fd);
    }
    const int why = errno;
    ::close(fd);
    if (why == EINTR) continue;  // by libFuzzer's alarm, once a minute
    std::fprintf(stderr, "cannot connect to the door: %s\n", std::strerror(why));
    return Link();
  }
}

bool Link::Send(std::string_view* bytes) {
  if (!open() || bytes->empty()) return false;
  const ssize_t n = ::send(fd_, bytes->data(), bytes->size(), MSG_NOSIGNAL);
  if (n > 0) bytes->remove_prefix(static_cast<size_t>(n));
  if (n > 0 || WouldBlock()) return n > 0;
  bytes->remove_prefix(bytes->size());  // the peer has gone; what it said before can still be read
  return true;
}

bool Link::Receive(std::string* in) {
  if (!open()) return false;
  char bytes[64 * 1024];
  const ssize_t n = ::recv(fd_, bytes, sizeof(bytes), 0);
  if (n < 0 && WouldBlock()) return false;
  if (n > 0) {
    in->append(bytes, static_cast<size_t>(n));
  } else {
    Reset();
  }
  return true;
}

void Link::HalfClose() {
  if (open()) ::shutdown(fd_, SHUT_WR);
}

void Link::Close() {
  if (open()) ::close(std::exchange(fd_, -1));
}

void Link::Reset() {
  if (!open()) return;
  const linger now{1, 0};
  ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
  Close();
}

std::pair<int, uint16_t> Listen() {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  sockaddr_in address = Loopback(0);
  LORRY_CHECK(::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
  LORRY_CHECK(::listen(fd, 1024) == 0);
  socklen_t size = sizeof(address);
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  return {fd, ntohs(address.sin_port)};
}

}  // namespace lorry::door::fuzz
