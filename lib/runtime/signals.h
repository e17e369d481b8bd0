// SIGTERM and SIGINT drain. From then on SIGINT ends the process at once: a person has stopped
// waiting. Supervisors repeat SIGTERM without meaning that; theirs is SIGKILL. SIGPIPE is ignored.
// SIGHUP drains where the process has a terminal, which then is gone, and is ignored elsewhere.
//
// Construct it first thing in main, before any thread: threads inherit the blocked mask, and
// signals arrive at Wait.
#pragma once

#include <csignal>

namespace lorry::runtime {

// UCX takes SIGHUP for its own debugger as it is loaded, whether or not nohup had it ignored. This
// gives it its usual meaning again: the end where standard input, output or error is a terminal,
// which nohup sees to that none is, and otherwise nothing. Returns whether one is.
bool TakeHangUpBack();

class Signals {
 public:
  Signals();
  ~Signals();  // restores the mask; for tests
  Signals(const Signals&) = delete;

  // Blocks until SIGTERM, SIGINT, SIGHUP or RequestStop; returns the signal's number, 0 for
  // RequestStop. From then on SIGINT ends the process with 128 + signal, and the others are ignored.
  int Wait();
  // From any thread: makes Wait return, for instance after a fatal error of a driver.
  void RequestStop();

 private:
  int signal_fd_ = -1;
  int stop_fd_ = -1;
  sigset_t before_, drains_;
};

}  // namespace lorry::runtime
