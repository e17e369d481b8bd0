#include "lib/transfer/ucx/log.h"

#include <ucs/debug/log_def.h>

#include <cstdio>
#include <cstdlib>

namespace lorry::transfer::ucx {
namespace {

constexpr size_t kLineMax = 1'024;  // longer lines are cut

ucs_log_func_rc_t ToStderr(const char* file, unsigned line, const char*, ucs_log_level_t level,
                           const ucs_log_component_config_t*, const char* format, va_list values) {
  char text[kLineMax];
  std::vsnprintf(text, sizeof(text), format, values);
  std::fprintf(stderr, "UCX %s %s (%s:%u)\n", ucs_log_level_names[level], text, file, line);
  return UCS_LOG_FUNC_RC_STOP;
}

}  // namespace

void LogToStderr() {
  [[maybe_unused]] static const bool pushed = [] {
    if (std::getenv("UCX_LOG_FILE") == nullptr) ucs_log_push_handler(ToStderr);
    return true;
  }();
}

}  // namespace lorry::transfer::ucx
