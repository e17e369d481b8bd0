/* Runs a command without the system calls that the default profile of container runtimes (seccompProfile: RuntimeDefault, Docker's
 * default.json) keeps from a container without capabilities: they answer EPERM. The profile lists what it lets through; here stands
 * what of the rest programs are known to use.
 *
 *   seccomp COMMAND [ARGUMENT ...]
 */
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static const int kDenied[] = {
    SYS_acct, SYS_add_key, SYS_bpf, SYS_clock_adjtime, SYS_clock_settime, SYS_delete_module, SYS_fanotify_init, SYS_finit_module,
    SYS_fsconfig, SYS_fsmount, SYS_fsopen, SYS_get_mempolicy, SYS_init_module, SYS_io_uring_enter, SYS_io_uring_register,
    SYS_io_uring_setup, SYS_kcmp, SYS_kexec_load, SYS_keyctl, SYS_lookup_dcookie, SYS_mbind, SYS_migrate_pages, SYS_mount,
    SYS_move_mount, SYS_move_pages, SYS_name_to_handle_at, SYS_open_by_handle_at, SYS_open_tree, SYS_perf_event_open,
    SYS_pidfd_getfd, SYS_pivot_root, SYS_quotactl, SYS_reboot, SYS_request_key, SYS_set_mempolicy, SYS_setdomainname,
    SYS_sethostname, SYS_setns, SYS_settimeofday, SYS_swapoff, SYS_swapon, SYS_syslog, SYS_umount2, SYS_unshare, SYS_userfaultfd,
    SYS_vhangup,
};
enum { kCount = sizeof(kDenied) / sizeof(kDenied[0]) };

int main(int argc, char** argv) {
  struct sock_filter program[kCount + 3];
  int at = 0;
  program[at++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
  for (int i = 0; i < kCount; ++i) {
    /* To the last instruction, past the comparisons that are left and the one that allows. */
    program[at++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kDenied[i], kCount - i, 0);
  }
  program[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
  program[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM);
  const struct sock_fprog filter = {.len = at, .filter = program};
  if (argc < 2 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) {
    perror("seccomp");
    return 1;
  }
  execvp(argv[1], argv + 1);
  perror(argv[1]);
  return 1;
}
