#include "services/engine_proxy/wedge_flags.h"

#include <utility>

#include "absl/flags/flag.h"
#include "lib/base/error.h"
#include "lib/program/program.h"

ABSL_FLAG(std::string, on_wedged, "",
          "exec:COMMAND is run by /bin/sh -c once for each boot of the engine that hangs in its "
          "adapter registry and needs a restart; with LORRY_MEMBER, LORRY_ENGINE_URL and "
          "LORRY_BOOT_ID in its environment; what it and what it leaves running write goes where "
          "this program logs; it ends with this program, and what it leaves running does not");
ABSL_FLAG(int64_t, on_wedged_limit_ms, 60'000, "then COMMAND and what it started are killed");

namespace lorry::proxy {

absl::Status CheckWedgeFlags() { return ParseOnWedged(absl::GetFlag(FLAGS_on_wedged)).status(); }

absl::StatusOr<std::unique_ptr<WedgeWatch>> OpenWedgeWatch(
    const std::string& member, const std::string& engine_url,
    std::function<std::optional<BootId>()> look) {
  LORRY_ASSIGN_OR_RETURN(std::string command, ParseOnWedged(absl::GetFlag(FLAGS_on_wedged)));
  if (command.empty()) return nullptr;
  LORRY_ASSIGN_OR_RETURN(const std::string data_dir, program::DataDir());
  return std::make_unique<WedgeWatch>(
      WedgeWatch::Options{
          .command = std::move(command),
          .environment = {"LORRY_MEMBER=" + member, "LORRY_ENGINE_URL=" + engine_url},
          .marker = data_dir + "/on_wedged.boot",
          .limit_ms = absl::GetFlag(FLAGS_on_wedged_limit_ms)},
      std::move(look));
}

}  // namespace lorry::proxy
