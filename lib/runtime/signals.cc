#include "lib/runtime/signals.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <initializer_list>

#include "lib/base/check.h"

namespace lorry::runtime {
namespace {

// _exit is safe inside a handler.
void LeaveAtOnce(int signal) { _exit(128 + signal); }

}  // namespace

bool TakeHangUpBack() {
  const bool terminal =
      isatty(STDIN_FILENO) == 1 || isatty(STDOUT_FILENO) == 1 || isatty(STDERR_FILENO) == 1;
  std::signal(SIGHUP, terminal ? SIG_DFL : SIG_IGN);
  return terminal;
}

Signals::Signals() {
  sigemptyset(&drains_);
  for (const int number : {SIGTERM, SIGINT}) sigaddset(&drains_, number);
  if (TakeHangUpBack()) sigaddset(&drains_, SIGHUP);
  LORRY_CHECK(pthread_sigmask(SIG_BLOCK, &drains_, &before_) == 0);
  std::signal(SIGPIPE, SIG_IGN);
  signal_fd_ = signalfd(-1, &drains_, SFD_CLOEXEC);
  stop_fd_ = eventfd(0, EFD_CLOEXEC);
  LORRY_CHECK(signal_fd_ >= 0 && stop_fd_ >= 0);
}

Signals::~Signals() {
  for (const int number : {SIGTERM, SIGINT, SIGHUP}) std::signal(number, SIG_DFL);
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
  for (const int repeated : {SIGTERM, SIGHUP}) std::signal(repeated, SIG_IGN);
  std::signal(SIGINT, LeaveAtOnce);
  LORRY_CHECK(pthread_sigmask(SIG_UNBLOCK, &drains_, nullptr) == 0);
  return number;
}

void Signals::RequestStop() {
  const uint64_t one = 1;
  LORRY_CHECK(write(stop_fd_, &one, sizeof(one)) == sizeof(one));
}

}  // namespace lorry::runtime
