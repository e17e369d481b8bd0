// A system call that fails, as on a file system that does not have it or a disk that is full.
#pragma once

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <cstddef>
#include <vector>

namespace lorry {

struct FailingCall {
  long number;  // SYS_flock
  int error;
  // It fails only where this argument, counted from 0, has this value; -1: always.
  int argument = -1;
  unsigned value = 0;
};

// For the calling thread, those that it starts and programs that it executes, for good. False where
// this machine does not allow it.
inline bool FailCalls(const std::vector<FailingCall>& calls) {
  std::vector<sock_filter> filter;
  const auto load = [&](size_t offset) {
    filter.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<unsigned>(offset)));
  };
  const auto skip_unless = [&](unsigned value, unsigned char skipped) {
    filter.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, skipped));
  };
  for (const FailingCall& call : calls) {
    load(offsetof(seccomp_data, nr));
    skip_unless(static_cast<unsigned>(call.number), call.argument < 0 ? 1 : 3);
    if (call.argument >= 0) {
      load(offsetof(seccomp_data, args) + sizeof(__u64) * static_cast<size_t>(call.argument));
      skip_unless(call.value, 1);
    }
    filter.push_back(
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<unsigned>(call.error)));
  }
  filter.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  const sock_fprog program{static_cast<unsigned short>(filter.size()), filter.data()};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

}  // namespace lorry
