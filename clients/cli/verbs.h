// The verbs by theme; main puts them together in this order. Each function is called once.
#pragma once

#include <vector>

#include "clients/cli/verb.h"

namespace lorry::cli {

std::vector<Verb> LocalVerbs();    // up, attach, doctor
std::vector<Verb> DetachVerbs();   // detach
std::vector<Verb> BenchVerbs();    // bench-sync
std::vector<Verb> PublishVerbs();  // publish, import, export
std::vector<Verb> FleetVerbs();    // status, engines, watch, rollback, mark, adopt, why
std::vector<Verb> AdapterVerbs();  // adapters, versions, alias, policy, delete, ...
std::vector<Verb> LeaseVerbs();    // lease, release, leases
std::vector<Verb> MoverVerbs();    // mover

// All of them, `version` and `help` among them.
std::vector<Verb> AllVerbs();
int PrintVersion();

}  // namespace lorry::cli
