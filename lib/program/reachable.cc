#include "lib/program/reachable.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <memory>

namespace lorry::program {
namespace {

// The address as text; empty if it is of another family, or valid on its own link alone.
std::string TextOf(const sockaddr* address, sa_family_t family) {
  if (address == nullptr || address->sa_family != family) return "";
  const void* bytes = nullptr;
  if (family == AF_INET) {
    const auto& ipv4 = *reinterpret_cast<const sockaddr_in*>(address);
    constexpr uint32_t kLinkLocal = 0xa9fe0000, kLinkLocalMask = 0xffff0000;  // 169.254.0.0/16
    if ((ntohl(ipv4.sin_addr.s_addr) & kLinkLocalMask) == kLinkLocal) return "";
    bytes = &ipv4.sin_addr;
  } else {
    const auto& ipv6 = *reinterpret_cast<const sockaddr_in6*>(address);
    if (IN6_IS_ADDR_LINKLOCAL(&ipv6.sin6_addr)) return "";
    bytes = &ipv6.sin6_addr;
  }
  char text[INET6_ADDRSTRLEN] = {};
  return ::inet_ntop(family, bytes, text, sizeof(text)) == nullptr ? "" : text;
}

}  // namespace

std::string ReachableHost(const HostPort& listens) {
  if (!listens.IsWildcard()) return listens.host;
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) first = nullptr;
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(first, &::freeifaddrs);
  for (const sa_family_t family : {AF_INET, AF_INET6}) {
    if (family == AF_INET6 && listens.host != "::") continue;
    for (const ifaddrs* at = first; at != nullptr; at = at->ifa_next) {
      if ((at->ifa_flags & IFF_UP) == 0 || (at->ifa_flags & IFF_LOOPBACK) != 0) continue;
      if (std::string text = TextOf(at->ifa_addr, family); !text.empty()) return text;
    }
  }
  return "127.0.0.1";
}

}  // namespace lorry::program
