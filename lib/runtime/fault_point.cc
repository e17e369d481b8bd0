#include "lib/runtime/fault_point.h"

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <set>
#include <string>

#include "lib/base/mutex.h"

namespace lorry::runtime {
namespace {

struct Fault {
  bool list = false;  // LORRY_FAULT=? and =@file
  std::string file;   // LORRY_FAULT=@file
  std::string name;
  long passes = 1;  // until the process ends
};

Fault FaultFromEnvironment() {
  const char* text = std::getenv("LORRY_FAULT");
  if (text == nullptr || *text == '\0') return {};
  if (std::strcmp(text, "?") == 0) return {.list = true};
  if (*text == '@') return {.list = true, .file = text + 1};
  Fault fault{.name = text};
  if (const size_t colon = fault.name.rfind(':'); colon != std::string::npos) {
    fault.passes = std::strtol(fault.name.c_str() + colon + 1, nullptr, 10);
    fault.name.resize(colon);
  }
  return fault;
}

// Whether the file names this point now. It is removed then: the process that comes next lives.
bool IsNamedNow(const std::string& file, const std::string& name) {
  std::ifstream in(file);
  std::string named;
  return std::getline(in, named) && named == name && std::remove(file.c_str()) == 0;
}

}  // namespace

const bool kFaultsArmed = [] {
  const char* text = std::getenv("LORRY_FAULT");
  return text != nullptr && *text != '\0';
}();

void PassFaultPoint(const char* name) {
  // Never destroyed: points are passed until the very end of the process.
  static auto& fault = *new Fault(FaultFromEnvironment());
  static auto& mutex = *new Mutex;
  static auto& seen = *new std::set<std::string>;
  MutexLock lock(mutex);
  if (fault.list && seen.insert(name).second) std::fprintf(stderr, "fault point: %s\n", name);
  const bool now =
      fault.file.empty() ? fault.name == name && --fault.passes == 0 : IsNamedNow(fault.file, name);
  if (now) {
    // Not exit: nothing may be flushed, synced or released, as when the machine takes the process
    // away.
    std::raise(SIGKILL);
  }
}

}  // namespace lorry::runtime
