// One adapter reference against one table: the rules of docs/SEMANTICS.md §5 and §8 as a pure
// function.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <variant>

#include "services/engine_proxy/door/router.h"

namespace lorry::door {

// What is said instead of "there is none" while the table awaits a Desired document.
Refused NotToldYet();

// What a request waits for by: an adapter's name, or of a binding the engine's, as several names may
// stand for the same bytes.
AdapterName AwaitedAs(const Resolved& resolved);

std::variant<Resolved, Held, Refused> ResolveOne(const proxy::DoorTable& table,
                                                 std::string_view reference,
                                                 const std::optional<MinVersion>& min_version);

}  // namespace lorry::door
