// Names the calling thread in `top -H`, in debuggers and in crash dumps.
#pragma once

#include <string>

namespace lorry::runtime {

// Linux keeps 15 bytes; the rest is cut.
void NameThisThread(const std::string& name);

}  // namespace lorry::runtime
