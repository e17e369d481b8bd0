#include "services/adapter_store/transfer_log.h"

#include <spdlog/spdlog.h>

#include "lib/base/error.h"

namespace lorry::store {
namespace {

constexpr Tick kEveryMs = 60'000;
// Hosts and reasons of a minute. A fleet has some hundred hosts; where all of them fail at once, the
// first of them show it.
constexpr size_t kToldMax = 1'024;

}  // namespace

void TransferLog::OnFailed(const transfer::FailedSession& failed) {
  // Each connection has another port. What has none, a Unix socket, is this host.
  const std::string host(
      failed.peer.starts_with("ip") ? failed.peer.substr(0, failed.peer.rfind(':')) : failed.peer);
  const std::string reason = ReasonOf(failed.why);
  const Tick now = clock_.Now();
  uint64_t between = 0;
  {
    MutexLock lock(mutex_);
    const auto key = std::pair(host, reason);
    const auto known = told_.find(key);
    if (known != told_.end() && now - known->second.at < kEveryMs)
      return (void)++known->second.since;
    if (known != told_.end()) between = known->second.since;
    std::erase_if(told_, [now](const auto& each) { return now - each.second.at >= kEveryMs; });
    if (told_.size() == kToldMax) return;
    told_[key] = {.at = now};
  }
  spdlog::warn("a transfer failed: peer={} transport={} object={} {} {}{}", host,
               std::string(failed.transport), std::string(failed.object), reason,
               std::string(failed.why.message()),
               between == 0 ? "" : fmt::format(" ({} more since the last line)", between));
}

}  // namespace lorry::store
