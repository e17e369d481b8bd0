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
  // The argument, counted from 0, that must not be 0 for the call to fail; -1: it always fails.
  int unless_zero = -1;
};

// For the calling thread, those that it starts and programs that it executes, for good. False where
// this machine does not allow it.
inline bool FailCalls(const std::vector<FailingCall>& calls) {
  std::vector<sock_filter> filter;
  for (const FailingCall& call : calls) {
    filter.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)));
    const bool always = call.unless_zero < 0;
    filter.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(call.number), 0,
                              static_cast<unsigned char>(always ? 1 : 3)));
    if (!always) {
      filter.push_back(BPF_STMT(
          BPF_LD | BPF_W | BPF_ABS,
          static_cast<unsigned>(offsetof(seccomp_data, args) + sizeof(__u64) * call.unless_zero)));
      filter.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, 1, 0));
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
