#include "lib/runtime/thread_name.h"

#include <pthread.h>

namespace lorry::runtime {

void NameThisThread(const std::string& name) {
  (void)pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
}

}  // namespace lorry::runtime
