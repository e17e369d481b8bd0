#include "lib/transfer/ucx/config.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <span>
#include <string>

#include "absl/strings/str_cat.h"

namespace lorry::transfer::ucx {
namespace {

// UCX lists these as UCX_POSIX_FIFO_SIZE, UCX_TCP_TX_SEG_SIZE and so on, but for a transport's
// settings ucp_config_modify knows the names without the transport's prefix only.
struct Setting {
  const char* name;
  const char* value;
  std::array<const char*, 2> environment;  // any of these set: the operator decides
};

// Measured on UCX 1.13.1; docs/adr has the figures.
constexpr Setting kForSharedMemory[] = {
    // Without it shared memory has no peer errors, and an endpoint cannot be closed by force.
    {"MM_ERROR_HANDLING", "y", {"UCX_MM_ERROR_HANDLING", "UCX_POSIX_ERROR_HANDLING"}},
    // A FIFO belongs to one session, so one sender fills it. 512 entries, 4 MiB, are what it
    // fills while its receiver is not running; more cost more to make than they bring.
    {"MM_FIFO_SIZE", "512", {"UCX_MM_FIFO_SIZE", "UCX_POSIX_FIFO_SIZE"}},
};
constexpr Setting kForNetworks[] = {
    // TCP with peer errors nearly doubles with larger segments.
    {"TX_SEG_SIZE", "256k", {"UCX_TX_SEG_SIZE", "UCX_TCP_TX_SEG_SIZE"}},
    {"RX_SEG_SIZE", "512k", {"UCX_RX_SEG_SIZE", "UCX_TCP_RX_SEG_SIZE"}},
};

bool IsSetByOperator(const Setting& setting) {
  return std::any_of(setting.environment.begin(), setting.environment.end(),
                     [](const char* name) { return std::getenv(name) != nullptr; });
}

// Shared memory never stands beside a network lane in one context: UCX would split a message over
// both, and bytes within a host would leave through a socket.
std::string TransportsOf(UcxLane lane, const UcxDevices& devices) {
  if (lane == UcxLane::kSharedMemory) return "posix";
  if (devices.tcp.empty()) return "ib";
  return devices.rdma.empty() ? "tcp" : "ib,tcp";
}

std::string DevicesOf(UcxLane lane, const UcxDevices& devices) {
  if (lane == UcxLane::kSharedMemory) return "";
  const bool both = !devices.tcp.empty() && !devices.rdma.empty();
  return absl::StrCat(devices.rdma, both ? "," : "", devices.tcp);
}

}  // namespace

ucs_status_t ReadConfig(UcxLane lane, const UcxDevices& devices, ucp_config_t** config) {
  ucs_status_t status = ucp_config_read(nullptr, nullptr, config);
  if (status != UCS_OK) return status;
  status = ucp_config_modify(*config, "TLS", TransportsOf(lane, devices).c_str());
  if (const std::string names = DevicesOf(lane, devices); status == UCS_OK && !names.empty()) {
    status = ucp_config_modify(*config, "NET_DEVICES", names.c_str());
  }
  if (status != UCS_OK) {
    ucp_config_release(*config);
    return status;
  }
  const bool shared = lane == UcxLane::kSharedMemory;
  for (const Setting& setting :
       shared ? std::span<const Setting>(kForSharedMemory) : std::span(kForNetworks)) {
    if (IsSetByOperator(setting)) continue;
    // A later UCX may have dropped a name; none of them is needed for correctness.
    (void)ucp_config_modify(*config, setting.name, setting.value);
  }
  return UCS_OK;
}

}  // namespace lorry::transfer::ucx
