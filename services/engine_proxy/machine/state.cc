#include "services/engine_proxy/machine/state.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "services/engine_proxy/machine/binding_name.h"
#include "services/engine_proxy/machine/demand.h"

namespace lorry::proxy {
namespace {

int64_t Doubled(int64_t min_ms, int64_t max_ms, uint32_t tries) {
  constexpr uint32_t kDoublingsLimit = 20;  // beyond it any maximum has long been reached
  return std::min(min_ms << std::min(tries > 0 ? tries - 1 : 0, kDoublingsLimit), max_ms);
}

}  // namespace

bool IsBinding(const Residency& residency) { return residency.key == BindingKey(); }

std::string NameKey(const EngineName& name) { return absl::StrCat("name/", name.value); }
std::string RowKey(const AdapterName& adapter) { return absl::StrCat("row/", adapter.value); }
std::string KillerKey(const EngineName& name) { return absl::StrCat("killer/", name.value); }

void Core::SaveName(const Residency& residency) {
  if (!residency.directory.has_value()) return;
  const bool leased = residency.uncounted.has_value() && residency.uncounted->leased;
  Save(NameKey(residency.name),
       NameRecord{residency.key, residency.digest, residency.render, residency.directory->path,
                  residency.loaded_on, residency.tried_on, residency.trial,
                  residency.directory->asked, leased, residency.traits, residency.rules.rule,
                  residency.rules.gap_ppm, residency.apart_ppm, residency.slept_on});
}

bool Core::IsWanted(const Residency& residency) const {
  return residency.wanted != nullptr || (!desired.has_value() && IsRowTarget(residency.name));
}

bool Core::IsUnwanted(const Residency& residency) const {
  return residency.wanted == nullptr && (desired.has_value() || IsBinding(residency));
}

bool Core::IsWantedLoaded(const Residency& residency) const {
  if (!WhyUnservable(*this, residency).empty()) return false;
  const auto killer = killers.find(residency.name);
  const uint32_t deaths = killer != killers.end() ? killer->second.deaths : 0;
  const bool is_bound = IsBound(residency.name);
  // Before the first document nobody has permitted to try again what an engine here has died of.
  if (!desired.has_value() && !is_bound) return IsRowTarget(residency.name) && deaths == 0;
  const fleet::WantedVersion* wanted = residency.wanted;
  if (wanted == nullptr || !wanted->load || deaths > wanted->deaths_allowed) return false;
  return !wanted->on_this_boot || desired->boot == boot;
}

bool Core::IsRowTarget(const EngineName& name) const { return row_targets.contains(name); }

const fleet::DesiredRow* Core::WantedRow(const AdapterName& adapter) const {
  const auto it = wanted_rows.find(adapter);
  return it != wanted_rows.end() ? it->second : nullptr;
}

const Residency* Core::Find(const EngineName& name) const {
  const auto it = residencies.find(name);
  return it != residencies.end() ? &it->second : nullptr;
}

bool Core::IsLoaded(const EngineName& name) const {
  const Residency* residency = Find(name);
  return residency != nullptr && residency->Is<at::Loaded>();
}

uint32_t Core::InFlight(const EngineName& name) const {
  if (in_flight.empty()) return 0;
  const auto it = in_flight.find(name);
  return it != in_flight.end() ? it->second : 0;
}

uint32_t Core::LatestInFlight(const EngineName& name) const {
  const auto named = by_name.find(name);
  return InFlight(name) - (named != by_name.end() ? named->second : 0);
}

uint64_t Core::LiveRequests() const {
  uint64_t live = 0;
  for (const auto& [name, count] : in_flight) live += count;
  return live;
}

bool Core::IsListed(const Residency& residency) const {
  return FreshlyListed(residency) && registry.listing.contains(residency.name);
}

bool Core::IsListedAsOurs(const Residency& residency) const {
  // What the engine read from a broken directory is not what it should have.
  const bool is_whole = residency.directory.has_value() && !residency.directory->broken;
  if (!is_whole || residency.loaded_on != boot || !FreshlyListed(residency)) return false;
  const auto listed = registry.listing.find(residency.name);
  return listed != registry.listing.end() && listed->second == residency.directory->path;
}

int64_t Core::Backoff(uint32_t tries) const {
  return Doubled(config.retry_min_ms, config.retry_max_ms, tries);
}

int64_t Core::AwayBackoff(uint32_t waits) const {
  return Doubled(config.away_min_ms, config.away_max_ms, waits);
}

}  // namespace lorry::proxy
