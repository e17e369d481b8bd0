#include "tests/testing/names.h"

#include <dlfcn.h>
#include <netdb.h>

#include <map>
#include <set>
#include <utility>

#include "lib/base/mutex.h"

namespace lorry {
namespace {

Mutex mutex;
CondVar changed;
std::map<std::string, std::vector<std::string>>& Names() LORRY_REQUIRES(mutex) {
  static auto& names = *new std::map<std::string, std::vector<std::string>>();
  return names;
}

std::set<std::string>& Lost() LORRY_REQUIRES(mutex) {
  static auto& lost = *new std::set<std::string>();
  return lost;
}

std::map<std::string, int>& Lookups() LORRY_REQUIRES(mutex) {
  static auto& lookups = *new std::map<std::string, int>();
  return lookups;
}

bool IsLost(const std::string& name) {
  MutexLock lock(mutex);
  ++Lookups()[name];
  return Lost().contains(name);
}

// Nothing where the name is none of the test's.
std::vector<std::string> AddressesOf(const std::string& name) {
  MutexLock lock(mutex);
  const auto found = Names().find(name);
  if (found == Names().end()) return {};
  while (found->second.empty()) changed.wait(mutex);
  return found->second;
}

}  // namespace

void SetName(const std::string& name, std::vector<std::string> addresses) {
  MutexLock lock(mutex);
  Lost().erase(name);
  Names()[name] = std::move(addresses);
  changed.notify_all();
}

void LoseName(const std::string& name) {
  MutexLock lock(mutex);
  Lost().insert(name);
  Lookups()[name] = 0;
}

int LookupsOf(const std::string& name) {
  MutexLock lock(mutex);
  return Lookups()[name];
}

}  // namespace lorry

extern "C" int getaddrinfo(const char* node, const char* service, const addrinfo* hints,
                           addrinfo** found) {
  using GetAddrInfo = int(const char*, const char*, const addrinfo*, addrinfo**);
  static const auto real = reinterpret_cast<GetAddrInfo*>(dlsym(RTLD_NEXT, "getaddrinfo"));
  if (lorry::IsLost(node != nullptr ? node : "")) return EAI_NONAME;
  const auto addresses = lorry::AddressesOf(node != nullptr ? node : "");
  if (addresses.empty()) return real(node, service, hints, found);
  *found = nullptr;
  for (addrinfo** end = found; const std::string& address : addresses) {
    if (const int error = real(address.c_str(), service, hints, end); error != 0) return error;
    while (*end != nullptr) end = &(*end)->ai_next;
  }
  return 0;
}
