#include "tests/bench/machine/obey.h"

#include <algorithm>
#include <utility>

namespace lorry::sync {

bool IsShut(fleet::RowMode mode) {
  return mode == fleet::RowMode::kHeld || mode == fleet::RowMode::kLocked;
}

bool StepTowards(const fleet::Desired& desired, fleet::Observed& observed) {
  fleet::Observed now = observed;
  now.term = desired.term;
  now.revision = desired.revision;
  now.residencies.clear();
  for (const fleet::WantedVersion& wanted : desired.wanted) {
    const auto had =
        std::ranges::find(observed.residencies, wanted.name, &fleet::ObservedResidency::name);
    fleet::ObservedResidency& residency = now.residencies.emplace_back();
    residency.name = wanted.name;
    residency.key = wanted.key;
    residency.state = fleet::ResidencyState::kFetched;
    if (had == observed.residencies.end()) continue;
    residency.state = had->state;
    if (had->state == fleet::ResidencyState::kFetched && wanted.load) {
      residency.state = fleet::ResidencyState::kLoading;
    } else if (had->state == fleet::ResidencyState::kLoading) {
      residency.state = fleet::ResidencyState::kLoaded;
    }
  }
  now.rows.clear();
  for (const fleet::DesiredRow& row : desired.rows) {
    const auto had = std::ranges::find(observed.rows, row.adapter, &fleet::ObservedRow::adapter);
    if (IsShut(row.mode)) {
      fleet::ObservedRow& shut = now.rows.emplace_back();
      if (had != observed.rows.end()) shut = *had;
      shut.adapter = row.adapter;
      shut.mode = row.mode;
      shut.barrier = row.epoch;
      continue;
    }
    const auto target =
        std::ranges::find(now.residencies, row.target, &fleet::ObservedResidency::name);
    const bool loaded =
        target != now.residencies.end() && target->state == fleet::ResidencyState::kLoaded;
    if (loaded) {
      now.rows.push_back(
          {row.adapter, row.mode, desired.term.incarnation, row.epoch, row.target, {}, {}});
    } else if (had != observed.rows.end()) {
      now.rows.push_back(*had);
    }
  }
  if (now == observed) return false;
  ++now.sequence;
  observed = std::move(now);
  return true;
}

}  // namespace lorry::sync
