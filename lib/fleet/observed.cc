#include "lib/fleet/observed.h"

namespace lorry::fleet {

std::string_view ToString(ResidencyState state) {
  switch (state) {
    case ResidencyState::kAbsent:
      return "ABSENT";
    case ResidencyState::kFetching:
      return "FETCHING";
    case ResidencyState::kFetched:
      return "FETCHED";
    case ResidencyState::kLoading:
      return "LOADING";
    case ResidencyState::kLoaded:
      return "LOADED";
    case ResidencyState::kUnloading:
      return "UNLOADING";
    case ResidencyState::kFailed:
      return "FAILED";
  }
  return "ABSENT";
}

std::string_view ToString(RowMode mode) {
  switch (mode) {
    case RowMode::kClosed:
      return "CLOSED";
    case RowMode::kOpen:
      return "OPEN";
    case RowMode::kHeld:
      return "HELD";
    case RowMode::kLocked:
      return "LOCKED";
  }
  return "CLOSED";
}

std::string_view ToString(MemberHealth health) {
  switch (health) {
    case MemberHealth::kJoining:
      return "JOINING";
    case MemberHealth::kReady:
      return "READY";
    case MemberHealth::kAsleep:
      return "ASLEEP";
    case MemberHealth::kWedged:
      return "WEDGED";
  }
  return "JOINING";
}

}  // namespace lorry::fleet
