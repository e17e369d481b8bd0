// What the door tells the proxy's machine of its requests.
#pragma once

#include "services/engine_proxy/door/router.h"
#include "services/engine_proxy/machine/events.h"

namespace lorry::door {

proxy::DoorReport ReportOf(const Counts& counts);

}  // namespace lorry::door
