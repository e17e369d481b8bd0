// What `lorry doctor` finds on the machine it runs on: UCX, shared memory.
#include <sys/statvfs.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "clients/cli/doctor.h"
#include "lib/transfer/ucx/ucx_transport.h"

namespace lorry::cli {
namespace {

using Grade = Finding::Grade;

// Room for a handful of adapters of 200 MB beside what engines keep there themselves.
constexpr uint64_t kSharedMemoryMin = uint64_t{1} << 30;

Finding LookAtUcx() {
  const auto transport = transfer::CreateUcxTransport(transfer::UcxLane::kSharedMemory,
                                                      std::make_shared<transfer::Channels>());
  if (transport.ok()) return {Grade::kGood, absl::StrCat(transfer::UcxVersion(), " starts")};
  return {Grade::kWarning,
          absl::StrCat("UCX does not start: ", std::string(transport.status().message())),
          "transfers fall back to gRPC, at a fraction of the rate; UCX_LOG_LEVEL=info says why"};
}

Finding LookAtSharedMemory() {
  struct statvfs fs = {};
  if (::statvfs("/dev/shm", &fs) != 0) {
    return {Grade::kBad, absl::StrCat("/dev/shm: ", std::strerror(errno)),
            "mount a tmpfs there, or give engine-proxy another --image-dir"};
  }
  const uint64_t free_bytes = uint64_t{fs.f_bavail} * fs.f_frsize;
  const std::string what = absl::StrCat("/dev/shm has ", Bytes(free_bytes), " free of ",
                                        Bytes(uint64_t{fs.f_blocks} * fs.f_frsize));
  if (free_bytes >= kSharedMemoryMin) return {Grade::kGood, what};
  return {Grade::kWarning, what,
          "give containers --shm-size=8g (Kubernetes: an emptyDir with medium: Memory), or use "
          "--image-dir"};
}

}  // namespace

std::vector<Finding> LookAtMachine() { return {LookAtUcx(), LookAtSharedMemory()}; }

}  // namespace lorry::cli
