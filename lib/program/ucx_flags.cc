#include "lib/program/ucx_flags.h"

#include <spdlog/spdlog.h>

#include <string>

#include "absl/flags/flag.h"

ABSL_FLAG(bool, ucx, true,
          "move images over UCX shared memory between processes of one user on one host");
ABSL_FLAG(std::string, ucx_tcp_devices, "",
          "move images over UCX by TCP on these network devices, comma-separated, for instance "
          "eth1; whoever reaches their addresses can write this process's memory, and nothing is "
          "encrypted: only for a network of trusted machines; default: none");
ABSL_FLAG(std::string, ucx_rdma_devices, "",
          "the same by RDMA on these devices, for instance mlx5_0:1; default: none");

namespace lorry::program {

bool UcxOn() { return absl::GetFlag(FLAGS_ucx); }

transfer::UcxDevices UcxDevices() {
  return {.tcp = absl::GetFlag(FLAGS_ucx_tcp_devices),
          .rdma = absl::GetFlag(FLAGS_ucx_rdma_devices)};
}

void WarnOfOpenMemory(const transfer::UcxDevices& devices) {
  for (const std::string& names : {devices.tcp, devices.rdma}) {
    if (names.empty()) continue;
    spdlog::warn(
        "UCX uses {}: whoever reaches these devices can write this process's memory and read what "
        "is moved; docs/SECURITY.md says when that is right",
        names);
  }
}

}  // namespace lorry::program
