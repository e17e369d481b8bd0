// Places where tests kill the process, to prove that a crash there loses nothing.
//
//   LORRY_FAULT_POINT("store.commit.after_rename");
//
// LORRY_FAULT=name[:n] in the environment makes the process SIGKILL itself the n-th time (default:
// the first) that it passes the point of that name. Otherwise a point costs one load and a
// predicted branch, so they stay in releases. LORRY_FAULT=? prints each point's name to stderr when
// it is first passed, so that a test can list and kill at all. LORRY_FAULT=@file lists them too,
// and kills at the point that the file's line names when it is passed, after removing the file: so
// a test chooses while the process runs, and it may be started again as it was.
#pragma once

namespace lorry::runtime {

// Set once, before main, from the environment.
extern const bool kFaultsArmed;
void PassFaultPoint(const char* name);

}  // namespace lorry::runtime

#define LORRY_FAULT_POINT(name)                      \
  do {                                               \
    if (::lorry::runtime::kFaultsArmed) [[unlikely]] \
      ::lorry::runtime::PassFaultPoint(name);        \
  } while (false)
