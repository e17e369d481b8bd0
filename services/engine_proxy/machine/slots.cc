#include "services/engine_proxy/machine/slots.h"

#include <algorithm>
#include <compare>
#include <iterator>
#include <limits>
#include <optional>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lib/base/strings.h"
#include "services/engine_proxy/machine/bindings.h"
#include "services/engine_proxy/machine/demand.h"
#include "services/engine_proxy/machine/loading.h"
#include "services/engine_proxy/machine/unload.h"

namespace lorry::proxy {
namespace {

// Whatever the engine lists.
bool HoldsASlot(const Core& core, const Residency& residency) {
  return residency.IsAny<at::Loading, at::Verifying, at::Probing, at::Doubted, at::Loaded,
                         at::Unloading>() ||
         IsUncertain(core, residency);
}

// Whether the engine's list counts for the slot of a name that it has: where nothing was loaded or
// unloaded since, it does, though it may be too old to say how the name came there.
bool CountsListed(const Core& core, const Residency& residency) {
  return core.registry.SlotsSettled() || core.FreshlyListed(residency);
}

bool HasListedSlot(const Core& core, const Residency& residency) {
  return CountsListed(core, residency) && core.registry.listing.contains(residency.name);
}

bool TakesSlot(const Core& core, const Residency& residency) {
  return HoldsASlot(core, residency) || HasListedSlot(core, residency);
}

// Calls `with` for each residency and whether the engine's list, of whatever age, has its name. Says
// how many others the list has. Both are sorted.
template <typename With>
uint32_t CompareWithListing(const Core& core, With with) {
  const auto& listing = core.registry.listing;
  uint32_t others = 0;
  auto listed = listing.begin();
  for (const auto& [name, residency] : core.residencies) {
    auto order = std::strong_ordering::less;
    while (listed != listing.end() && (order = listed->first <=> name) < 0) ++listed, ++others;
    const bool is_listed = listed != listing.end() && order == 0;
    if (is_listed) ++listed;
    with(residency, is_listed);
  }
  return others + static_cast<uint32_t>(std::distance(listed, listing.end()));
}

uint32_t OthersListed(const Core& core) {
  return CompareWithListing(core, [](const Residency&, bool) {});
}

// Whether a row sends its requests to it and needs it loaded all the time (not only on demand).
bool HoldsARow(const Core& core, const EngineName& name) {
  return core.IsRowTarget(name) && !IsOnDemand(core, name);
}

// How many slots cannot be freed for another version: those of versions that MUST be loaded, that a
// row needs, or that clients may use by a lease, and those of adapters that Lorry has not loaded.
uint32_t SlotsKept(const Core& core, const Residency& except) {
  uint32_t kept = OthersListed(core);
  for (const auto& [name, residency] : core.residencies) {
    if (&residency == &except || !TakesSlot(core, residency)) continue;
    const bool in_use = residency.uncounted.has_value() && residency.uncounted->leased;
    const bool stays = in_use || HoldsARow(core, name) ||
                       (MustBeLoaded(core, residency) && core.IsWantedLoaded(residency));
    if (stays) ++kept;
  }
  return kept;
}

// How many slots must stay free when this version is loaded: the last one is kept for the next
// version that MUST be loaded.
uint32_t SlotsSpared(const Core& core, const Residency& residency) {
  if (residency.wanted == nullptr || MustBeLoaded(core, residency)) return 0;
  // A framework has sized the engine for its own adapters: they may have every slot that nobody
  // needs now.
  return core.IsBound(residency.name) && PlaceOf(core, residency).has_value() ? 0 : 1;
}

// Whether none is free for it where so many are used. A load of it without an answer may have its own.
bool LacksSlot(const Core& core, const Residency& residency, uint32_t used) {
  const uint32_t by_others = used - (IsUncertain(core, residency) ? 1 : 0);
  return by_others + SlotsSpared(core, residency) >= core.limits.slots;
}

// Whether it is to be loaded now, so that other versions may be unloaded for it.
bool Claims(const Core& core, const Residency& residency) {
  if (!residency.IsAny<at::Fetched, at::Hashing, at::Checking, at::Deleting>()) return false;
  if (!core.IsWantedLoaded(residency) || HasListedSlot(core, residency)) return false;
  if (MustBeLoaded(core, residency)) return true;
  // Nothing is unloaded where that would not give the slot that is needed.
  return PlaceOf(core, residency).has_value() &&
         SlotsKept(core, residency) + SlotsSpared(core, residency) < core.limits.slots;
}

bool WaitsForASlot(const Core& core) {
  if (core.limits.slots == 0) return false;
  std::optional<uint32_t> used;
  return std::any_of(core.residencies.begin(), core.residencies.end(), [&](const auto& entry) {
    const Residency& residency = entry.second;
    if (!Claims(core, residency)) return false;
    if (!used.has_value()) used = SlotsUsed(core);
    return LacksSlot(core, residency, *used);
  });
}

// A place behind all that wait.
constexpr uint32_t kNobody = std::numeric_limits<uint32_t>::max();

// The first place in the line of those that are to be loaded for requests and are not on the
// engine.
uint32_t FirstInLine(const Core& core) {
  uint32_t first = kNobody;
  for (const auto& [name, residency] : core.residencies) {
    const std::optional<uint32_t> place = PlaceOf(core, residency);
    const bool waits = place.has_value() && !MustBeLoaded(core, residency);
    if (waits && *place < first && Claims(core, residency)) first = *place;
  }
  return first;
}

// Whether a version that the engine has may be unloaded once it is idle. If requests wait for it,
// it stays until they have begun (a batch for several adapters begins only once all of them are
// loaded), unless the place `first` in the line comes before its own.
bool MayLeave(const Core& core, const Residency& residency, uint32_t first) {
  if (residency.wanted == nullptr || MustBeLoaded(core, residency)) return false;
  if (IsJustBound(core, residency.name)) return false;
  const std::optional<uint32_t> place = PlaceOf(core, residency);
  const bool is_awaited = place.has_value() && *place < first;
  return !HoldsARow(core, residency.name) && !is_awaited;
}

// Whether a slot comes free without waiting for any request to end: a version is being unloaded, or
// is idle and about to be, or is idle and MakeRoom could choose it.
bool ComesFree(const Core& core, uint32_t first) {
  bool is_refused = false;  // the engine has just refused to let somebody go, and is asked again
  bool may_leave = false;
  for (const auto& [name, residency] : core.residencies) {
    if (residency.Is<at::Unloading>()) return true;
    if (!IsOnEngine(core, residency) || !IsIdle(core, residency)) continue;
    const bool leaves = IsLeaving(core, residency);
    if (leaves && core.now >= residency.unload_after) return true;
    is_refused = is_refused || leaves;
    may_leave = may_leave || MayLeave(core, residency, first);
  }
  return may_leave && !is_refused;
}

// Of the versions that may be unloaded, the one with the lowest value goes: first those that no row
// and no binding sends new requests to, by their eviction rank; then the one whose last request is
// longest ago.
auto WorthOf(const Core& core, const Residency& residency) {
  const bool is_served = core.IsServed(residency.name);
  const auto last = core.last_admitted.find(residency.name);
  const bool was_asked = is_served && last != core.last_admitted.end();
  return std::tuple(is_served, was_asked ? last->second : 0, residency.wanted->eviction_rank);
}

// Since when the version that has waited longest for a slot has waited; now, if none waits.
Tick NeededSince(const Core& core) {
  Tick since = core.now;
  for (const auto& [name, residency] : core.residencies) {
    const auto* fetched = std::get_if<at::Fetched>(&residency.phase);
    if (fetched != nullptr) since = std::min(since, fetched->needs_slot_since.value_or(core.now));
  }
  return since;
}

// Whether it was chosen to give way, and is still loaded.
bool Yields(const Residency& residency) { return residency.evicting && residency.Is<at::Loaded>(); }

// Whether new requests still come to it, and it could be chosen to give way.
bool CouldYield(const Core& core, const Residency& residency, uint32_t first) {
  return residency.Is<at::Loaded>() && !residency.evicting && core.IsServed(residency.name) &&
         MayLeave(core, residency, first);
}

// No version is idle, so one in use is chosen to give way: its new requests wait behind those that
// wait already, until it is idle and can be unloaded. One more is chosen for each `yield_ms` that a
// version has waited for a slot, in the order in which they were loaded.
bool GiveWay(Core& core, uint32_t first) {
  int64_t due = (core.now - NeededSince(core)) / core.config.yield_ms;
  Residency* next = nullptr;
  for (auto& [name, residency] : core.residencies) {
    if (Yields(residency)) --due;
    if (!CouldYield(core, residency, first)) continue;
    if (next == nullptr || residency.changed_as_of < next->changed_as_of) next = &residency;
  }
  if (next == nullptr || due <= 0) return false;
  next->evicting = true;
  return true;
}

// No slot is needed any more: lets those stay that were chosen to give way and are still loaded.
bool LetStay(Core& core) {
  bool any = false;
  for (auto& [name, residency] : core.residencies) {
    if (!Yields(residency) || !core.IsServed(name) || !IsOnDemand(core, name)) continue;
    residency.evicting = false;
    any = true;
  }
  return any;
}

}  // namespace

uint32_t SlotsUsed(const Core& core) {
  uint32_t ours = 0;
  const uint32_t others = CompareWithListing(core, [&](const Residency& residency, bool is_listed) {
    if (HoldsASlot(core, residency) || (is_listed && CountsListed(core, residency))) ++ours;
  });
  return others + ours;
}

bool IsSlotFree(const Core& core, const Residency& residency) {
  return core.limits.slots == 0 || !LacksSlot(core, residency, SlotsUsed(core));
}

bool LetsOthersFirst(const Core& core, const Residency& residency) {
  const bool nobody_waits = core.waiting.empty() && core.bindings.calls.empty();
  if (nobody_waits || !core.must_went_first || !MustBeLoaded(core, residency)) return false;
  const uint32_t first = FirstInLine(core);
  return first != kNobody && ComesFree(core, first);
}

void SaySlot(const Core& core, Residency& residency) {
  std::optional<std::string>& no_slot = std::get<at::Fetched>(residency.phase).no_slot;
  no_slot.reset();
  if (!IsNeededNow(core, residency) || core.limits.slots == 0) return;
  if (SlotsKept(core, residency) + SlotsSpared(core, residency) < core.limits.slots) return;
  no_slot = absl::StrCat("all ", core.limits.slots,
                         " slots of the engine hold what must stay; give it more (",
                         ToAbsl(fleet::SlotsFlag(core.limits.kind)),
                         "), keep fewer versions, or end a lease or an alias");
}

// Idle versions are chosen first: a busy one could not be unloaded before it is idle anyway.
bool MakeRoom(Core& core) {
  if (!WaitsForASlot(core)) return LetStay(core);
  const uint32_t first = FirstInLine(core);
  Residency* leaves = nullptr;
  for (auto& [name, residency] : core.residencies) {
    if (residency.Is<at::Unloading>()) return false;
    if (!IsOnEngine(core, residency) || !IsIdle(core, residency)) continue;
    if (IsLeaving(core, residency)) return false;
    if (!MayLeave(core, residency, first)) continue;
    if (leaves == nullptr || WorthOf(core, residency) < WorthOf(core, *leaves)) leaves = &residency;
  }
  if (leaves == nullptr) return GiveWay(core, first);
  leaves->evicting = true;
  return true;
}

std::string WhoHoldsSlots(const Core& core) {
  std::vector<std::string> names;
  for (const auto& [name, residency] : core.residencies) {
    if (TakesSlot(core, residency)) names.push_back(name.value);
  }
  const uint32_t others = OthersListed(core);
  if (others > 0) names.push_back(absl::StrCat(others, " that Lorry did not load"));
  return names.empty() ? "nobody" : absl::StrJoin(names, ", ");
}

std::optional<Tick> SlotWakeAt(const Core& core) {
  if (!WaitsForASlot(core)) return std::nullopt;
  const uint32_t first = FirstInLine(core);
  const bool somebody_could =
      std::any_of(core.residencies.begin(), core.residencies.end(),
                  [&](const auto& entry) { return CouldYield(core, entry.second, first); });
  if (!somebody_could) return std::nullopt;
  const int64_t waited = core.now - NeededSince(core);
  return core.now + core.config.yield_ms - waited % core.config.yield_ms;
}

}  // namespace lorry::proxy
