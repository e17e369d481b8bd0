// The flags of what runs once for each boot of the engine that is WEDGED. main's thread only.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "services/engine_proxy/driver/wedge_watch.h"

namespace lorry::proxy {

absl::Status CheckWedgeFlags();

// By --on-wedged; null where it names nothing. `look`: the boot that is WEDGED now.
absl::StatusOr<std::unique_ptr<WedgeWatch>> OpenWedgeWatch(
    const std::string& member, const std::string& engine_url,
    std::function<std::optional<BootId>()> look);

}  // namespace lorry::proxy
