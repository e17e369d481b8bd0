#include "services/engine_proxy/driver/readiness.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace lorry::proxy {
namespace {

// What a newcomer has still to do. A version that its engine has refused, or has no slot for, is not
// waited for: status says so, and the other adapters are served meanwhile.
absl::Status WhatIsOwed(const DoorTable& table) {
  const bool serves = std::ranges::any_of(
      table.rows, [](const DoorRow& row) { return row.mode != fleet::RowMode::kClosed; });
  if (table.awaits_desired && !serves) {
    return absl::UnavailableError(
        "joining: the orchestrator has not said yet what this engine is to serve");
  }
  for (const DoorRow& row : table.rows) {
    if (row.catching_up && row.waits_for.empty())
      return absl::UnavailableError(absl::StrCat("joining: the decided version of ",
                                                 row.adapter.value, " is not loaded here yet"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Readiness::Judge(const fleet::Observed& observed, const DoorTable& table) {
  if (observed.health == fleet::MemberHealth::kJoining)
    return absl::UnavailableError(absl::StrCat("joining: ", observed.health_detail));
  // An engine that sleeps loads nothing: nobody may wait for that.
  if (ready_boot_ == observed.boot || observed.health != fleet::MemberHealth::kReady)
    return absl::OkStatus();
  absl::Status owed = WhatIsOwed(table);
  if (owed.ok()) ready_boot_ = observed.boot;
  return owed;
}

}  // namespace lorry::proxy
