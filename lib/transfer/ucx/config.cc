#include "lib/transfer/ucx/config.h"

#include <algorithm>
#include <array>
#include <cstdlib>

namespace lorry::transfer::ucx {
namespace {

// UCX lists these as UCX_POSIX_FIFO_SIZE, UCX_TCP_TX_SEG_SIZE and so on, but for a transport's
// settings ucp_config_modify knows the names without the transport's prefix only.
struct Setting {
  const char* name;
  const char* value;
  std::array<const char*, 2> environment;  // any of these set: the operator decides
};

// Measured on UCX 1.13.1; docs/adr/0001-ucx-peer-mode.md has the figures.
constexpr Setting kSettings[] = {
    // Without it shared memory has no peer errors, and UCX silently takes TCP within a host.
    {"MM_ERROR_HANDLING", "y", {"UCX_MM_ERROR_HANDLING", "UCX_POSIX_ERROR_HANDLING"}},
    // The default of 64 entries collapses as soon as several peers send at once.
    {"MM_FIFO_SIZE", "4096", {"UCX_MM_FIFO_SIZE", "UCX_POSIX_FIFO_SIZE"}},
    // TCP with peer errors nearly doubles with larger segments.
    {"TX_SEG_SIZE", "256k", {"UCX_TX_SEG_SIZE", "UCX_TCP_TX_SEG_SIZE"}},
    {"RX_SEG_SIZE", "512k", {"UCX_RX_SEG_SIZE", "UCX_TCP_RX_SEG_SIZE"}},
    // A restarted server gets its port back.
    {"CM_REUSEADDR", "y", {"UCX_CM_REUSEADDR", "UCX_TCP_CM_REUSEADDR"}},
};

bool IsSetByOperator(const Setting& setting) {
  return std::any_of(setting.environment.begin(), setting.environment.end(),
                     [](const char* name) { return std::getenv(name) != nullptr; });
}

}  // namespace

ucs_status_t ReadConfig(ucp_config_t** config) {
  const ucs_status_t status = ucp_config_read(nullptr, nullptr, config);
  if (status != UCS_OK) return status;
  for (const Setting& setting : kSettings) {
    if (IsSetByOperator(setting)) continue;
    // A later UCX may have dropped a name; none of them is needed for correctness.
    (void)ucp_config_modify(*config, setting.name, setting.value);
  }
  return UCS_OK;
}

}  // namespace lorry::transfer::ucx
