#include "lib/runtime/signals.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include "lib/base/check.h"

namespace lorry::runtime {
namespace {

// _exit is safe inside a handler.
void LeaveAtOnce(int signal) { _exit(128 + signal); }

sigset_t DrainSignals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  return set;
}

}  // namespace

Signals::Signals() {
  const sigset_t set = DrainSignals();
  LORRY_CHECK(pthread_sigmask(SIG_BLOCK, &set, &before_) == 0);
  std::signal(SIGPIPE, SIG_IGN);
  signal_fd_ = signalfd(-1, &set, SFD_CLOEXEC);
  stop_fd_ = eventfd(0, EFD_CLOEXEC);
  LORRY_CHECK(signal_fd_ >= 0 && stop_fd_ >= 0);
}

Signals::~Signals() {
  std::signal(SIGTERM, SIG_DFL);
  std::signal(SIGINT, SIG_DFL);
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  close(signal_fd_);
  close(stop_fd_);
}

int Signals::Wait() {
  pollfd fds[2] = {{signal_fd_, POLLIN, 0}, {stop_fd_, POLLIN, 0}};
  while (poll(fds, 2, -1) < 0) LORRY_CHECK(errno == EINTR);
  int number = 0;
  if (fds[0].revents != 0) {
    signalfd_siginfo info;
    LORRY_CHECK(read(signal_fd_, &info, sizeof(info)) == sizeof(info));
    number = static_cast<int>(info.ssi_signo);
  }
  std::signal(SIGTERM, SIG_IGN);
  std::signal(SIGINT, LeaveAtOnce);
  const sigset_t set = DrainSignals();
  LORRY_CHECK(pthread_sigmask(SIG_UNBLOCK, &set, nullptr) == 0);
  return number;
}

void Signals::RequestStop() {
  const uint64_t one = 1;
  LORRY_CHECK(write(stop_fd_, &one, sizeof(one)) == sizeof(one));
}

}  // namespace lorry::runtime
