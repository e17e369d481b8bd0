// Where the driver's parts put their answers: the machine's mailbox. Any thread, never blocks.
#pragma once

#include <functional>

#include "services/engine_proxy/machine/events.h"

namespace lorry::proxy {

using EventSink = std::function<void(Event)>;

}  // namespace lorry::proxy
