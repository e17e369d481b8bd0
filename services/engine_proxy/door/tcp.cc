#include "services/engine_proxy/door/tcp.h"

#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <limits>

namespace lorry::door {
namespace {

// The first probe after 30 s of silence, then six more: 90 s. Load balancers and NATs forget a
// connection after minutes, so the probes also keep a request alive that is silent for hours.
constexpr int kProbeAfterS = 30;
constexpr int kProbeEveryS = 10;
constexpr int kProbes = 6;

void Set(int fd, int level, int option, int value) {
  // A socket that refuses an option works without it.
  (void)::setsockopt(fd, level, option, &value, sizeof(value));
}

}  // namespace

bool IsQuiet(int fd) {
  char byte;
  const ssize_t n = ::recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
}

bool HasEnded(int fd) {
  int unread = 0;
  return HasHungUp(fd) && ::ioctl(fd, SIOCINQ, &unread) == 0 && unread == 0;
}

bool HasHungUp(int fd) {
  pollfd events{fd, POLLRDHUP, 0};
  return ::poll(&events, 1, 0) > 0 && (events.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

bool AcknowledgedOnly(int fd, uint64_t sent) {
  tcp_info info{};
  socklen_t size = sizeof(info);
  constexpr size_t kNeeded = offsetof(tcp_info, tcpi_bytes_acked) + sizeof(info.tcpi_bytes_acked);
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0 || size < kNeeded) return false;
  // The SYN counts as one byte.
  return info.tcpi_bytes_acked == sent + 1;
}

void DetectDeadPeer(int fd, int64_t unacknowledged_ms) {
  Set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  Set(fd, IPPROTO_TCP, TCP_KEEPIDLE, kProbeAfterS);
  Set(fd, IPPROTO_TCP, TCP_KEEPINTVL, kProbeEveryS);
  Set(fd, IPPROTO_TCP, TCP_KEEPCNT, kProbes);
  // With TCP_USER_TIMEOUT set, Linux lets it decide about unanswered probes too: it may not be
  // shorter than they take.
  constexpr int64_t kProbesMs = (kProbeAfterS + kProbeEveryS * kProbes) * 1'000;
  const int64_t longest = std::numeric_limits<int>::max();
  Set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT,
      static_cast<int>(std::clamp(unacknowledged_ms, kProbesMs, longest)));
}

}  // namespace lorry::door
