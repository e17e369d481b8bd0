// The residency's table (docs/machines.md): which event leads from which state where, what is then
// asked of the engine or of the fetcher, and what is written down. Private to the folder.
//
// A pair of state and event without a row means nothing: the event is late, or of something that
// was given up meanwhile.
#pragma once

#include <cstdint>
#include <span>

namespace lorry::proxy {

// In the order of the alternatives of Phase (state.h).
enum class ResidencyState : uint8_t {
  kAbsent,
  kFetching,
  kCancelling,
  kFetched,  // as a next state: ABSENT, where there is no directory
  kHashing,
  kChecking,
  kDeleting,
  kLoading,
  kVerifying,
  kProbing,
  kDoubted,
  kLoaded,
  kUnloading,
  kFailed,
};

enum class ResidencyEvent : uint8_t {
  kWanted,
  kNotWanted,
  kListed,
  kFetched,
  kFetchPutOff,
  kFetchFailed,
  kFetchEnded,
  kNotProven,
  kProven,
  kBroken,
  kNotCompared,
  kFits,
  kMisfit,
  kUnreadable,
  kMayBeDeleted,
  kDeleted,
  kNotDeleted,
  kGetsSlot,
  kListedAsOurs,
  kNotListed,
  kAnswered,
  kBrokeOff,
  kEngineLives,
  kPassed,
  kFailed,
  kVanished,
  kNotBelieved,
  kMayBeUnloaded,
  kUnloadUnanswered,
  kUnloadAnswered,
  kUnloadHangs,
  kBootEnded,
  kMayBeTried,
};

enum class ResidencyAsk : uint8_t {
  kNothing,
  kFetch,
  kCancel,
  kHash,
  kCheck,
  kDelete,
  kLoad,
  kProbe,
  kUnload
};

enum class ResidencyWrite : uint8_t { kNothing, kName, kNoName, kUnloading, kNoUnloading, kWedged };

struct ResidencyTransition {
  ResidencyState from;
  ResidencyEvent event;
  ResidencyState to;
  ResidencyAsk ask = ResidencyAsk::kNothing;
  ResidencyWrite write = ResidencyWrite::kNothing;
};

std::span<const ResidencyTransition> ResidencyTable();

}  // namespace lorry::proxy
