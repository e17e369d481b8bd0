#include "lib/metrics/process.h"

#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace lorry::metrics {
namespace {

double Seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
}

}  // namespace

ProcessFigures ReadProcess() {
  ProcessFigures figures;
  uint64_t pages = 0;
  std::ifstream statm("/proc/self/statm");
  statm >> pages >> pages;  // the second number is what is resident
  if (statm) figures.resident_bytes = static_cast<double>(pages) * ::sysconf(_SC_PAGESIZE);
  rusage usage{};
  if (::getrusage(RUSAGE_SELF, &usage) == 0) {
    figures.cpu_seconds = Seconds(usage.ru_utime) + Seconds(usage.ru_stime);
  }
  std::error_code error;
  for (std::filesystem::directory_iterator at("/proc/self/fd", error), end; !error && at != end;
       at.increment(error)) {
    ++figures.open_fds;
  }
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    figures.max_fds = static_cast<double>(limit.rlim_cur);
  }
  return figures;
}

}  // namespace lorry::metrics
