#include "services/engine_proxy/door/report.h"

namespace lorry::door {

proxy::DoorReport ReportOf(const Counts& counts) {
  proxy::DoorReport report{.revision = counts.revision,
                           .in_flight = counts.in_flight,
                           .waiting = counts.waiting,
                           .last_admitted = counts.last_admitted,
                           .by_name = counts.by_name,
                           .sequence = counts.sequence};
  // Under no name: the engine counts them too.
  if (counts.base_in_flight > 0) report.in_flight[EngineName()] = counts.base_in_flight;
  return report;
}

}  // namespace lorry::door
