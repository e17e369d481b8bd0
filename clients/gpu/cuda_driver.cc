#include "clients/gpu/cuda_driver.h"

#include <dlfcn.h>

namespace lorry::gpu {
namespace {

struct Loaded {
  Driver driver;
  std::string missing;
};

// cuda.h's names are macros that name versions, which are expanded before they become a text.
#define LORRY_TEXT(name) #name

Loaded Load() {
  Loaded loaded;
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    loaded.missing = std::string("no NVIDIA driver: ") + dlerror();
    return loaded;
  }
  const auto find = [&](const char* name, auto& function) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    if (function == nullptr) loaded.missing = std::string("an NVIDIA driver without ") + name;
  };
#define LORRY_DRIVER_CALL(name) find(LORRY_TEXT(name), loaded.driver.name);
  LORRY_DRIVER_CALLS(LORRY_DRIVER_CALL)
#undef LORRY_DRIVER_CALL
  return loaded;
}

}  // namespace

const Driver* Driver::Find(std::string& missing) {
  static const Loaded kLoaded = Load();
  missing = kLoaded.missing;
  return missing.empty() ? &kLoaded.driver : nullptr;
}

}  // namespace lorry::gpu
