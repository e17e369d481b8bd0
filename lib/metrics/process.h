// What the operating system knows of this process, under the names that all Prometheus clients use:
// memory, processor time, descriptors, start. The registry adds them; nobody else needs to.
#pragma once

#include <cstdint>

namespace lorry::metrics {

struct ProcessFigures {
  double resident_bytes = 0;
  double cpu_seconds = 0;  // user and system, all threads
  double open_fds = 0;
  double max_fds = 0;  // the soft limit
};
// Zero where /proc does not tell.
ProcessFigures ReadProcess();

}  // namespace lorry::metrics
