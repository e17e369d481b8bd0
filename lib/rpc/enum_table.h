// Enumerations as tables: one row a value, read in both directions, so that nothing is forgotten in
// one of them. Pure functions over constants, any thread.
#pragma once

#include <array>
#include <cstddef>
#include <utility>

#include "lib/base/check.h"
#include "lib/fleet/policy.h"
#include "lorry/common/v1/adapter.pb.h"

namespace lorry::rpc {

template <typename Plain, typename Wire, size_t N>
using EnumTable = std::array<std::pair<Plain, Wire>, N>;

// Every value of Plain has a row.
template <typename Plain, typename Wire, size_t N>
Wire ToWire(const EnumTable<Plain, Wire, N>& table, Plain value) {
  for (const auto& [plain, wire] : table) {
    if (plain == value) return wire;
  }
  LORRY_CHECK(false);
  return table.front().second;
}

// Null for a value of the wire that has no row: a newer peer's, or none.
template <typename Plain, typename Wire, size_t N>
const Plain* FindPlain(const EnumTable<Plain, Wire, N>& table, Wire value) {
  for (const auto& [plain, wire] : table) {
    if (wire == value) return &plain;
  }
  return nullptr;
}

// What stands both in a policy and in what members are told of it; the first row is the default.
inline constexpr std::array kStales{
    std::pair{fleet::StaleMode::kRefuse, common::v1::STALE_MODE_REFUSE},
    std::pair{fleet::StaleMode::kHold, common::v1::STALE_MODE_HOLD},
    std::pair{fleet::StaleMode::kTag, common::v1::STALE_MODE_TAG}};
inline constexpr std::array kNoAdapters{
    std::pair{fleet::NoAdapterMode::kRefuse, common::v1::NO_ADAPTER_MODE_REFUSE},
    std::pair{fleet::NoAdapterMode::kLatest, common::v1::NO_ADAPTER_MODE_LATEST},
    std::pair{fleet::NoAdapterMode::kBase, common::v1::NO_ADAPTER_MODE_BASE}};
inline constexpr std::array kInFlights{
    std::pair{fleet::InFlightMode::kFinishOnOld, common::v1::IN_FLIGHT_MODE_FINISH_ON_OLD},
    std::pair{fleet::InFlightMode::kAbort, common::v1::IN_FLIGHT_MODE_ABORT},
    std::pair{fleet::InFlightMode::kResumeOnNew, common::v1::IN_FLIGHT_MODE_RESUME_ON_NEW}};
inline constexpr std::array kProbes{
    std::pair{fleet::ProbeMode::kAuto, common::v1::PROBE_MODE_AUTO},
    std::pair{fleet::ProbeMode::kToken, common::v1::PROBE_MODE_TOKEN},
    std::pair{fleet::ProbeMode::kPresence, common::v1::PROBE_MODE_PRESENCE},
    std::pair{fleet::ProbeMode::kDiffers, common::v1::PROBE_MODE_DIFFERS}};

}  // namespace lorry::rpc
