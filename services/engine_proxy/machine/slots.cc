#include "services/engine_proxy/machine/slots.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "lib/base/strings.h"
#include "services/engine_proxy/machine/loading.h"
#include "services/engine_proxy/machine/unload.h"

namespace lorry::proxy {
namespace {

bool TakesSlot(const Core& core, const Residency& residency) {
  return residency.IsAny<at::Loading, at::Verifying, at::Probing, at::Doubted, at::Loaded,
                         at::Unloading>() ||
         IsUncertain(core, residency) || core.IsListed(residency);
}

bool Must(const Residency& residency) {
  return residency.wanted != nullptr && residency.wanted->must;
}

uint32_t OthersListed(const Core& core) {
  const auto& listing = core.registry.listing;
  return static_cast<uint32_t>(
      std::count_if(listing.begin(), listing.end(),
                    [&](const auto& entry) { return core.Find(entry.first) == nullptr; }));
}

// Taken by what cannot leave for another: what MUST be loaded, what rows stand on, what clients to
// whom it was leased may still use, what is not Lorry's.
uint32_t SlotsKept(const Core& core, const Residency& except) {
  uint32_t kept = OthersListed(core);
  for (const auto& [name, residency] : core.residencies) {
    const bool in_use = residency.uncounted.has_value() && residency.uncounted->leased;
    const bool stays =
        core.IsRowTarget(name) || (Must(residency) && core.IsWantedLoaded(residency)) || in_use;
    if (&residency != &except && TakesSlot(core, residency) && stays) ++kept;
  }
  return kept;
}

bool WaitsForASlot(const Core& core) {
  if (core.limits.slots == 0) return false;
  const bool waits =
      std::any_of(core.residencies.begin(), core.residencies.end(), [&](const auto& entry) {
        const Residency& residency = entry.second;
        const bool rests = residency.IsAny<at::Fetched, at::Hashing, at::Checking, at::Deleting>();
        return rests && Must(residency) && core.IsWantedLoaded(residency) &&
               !core.IsListed(residency);
      });
  return waits && SlotsUsed(core) >= core.limits.slots;
}

}  // namespace

uint32_t SlotsUsed(const Core& core) {
  uint32_t used = OthersListed(core);
  for (const auto& [name, residency] : core.residencies) {
    if (TakesSlot(core, residency)) ++used;
  }
  return used;
}

bool IsSlotFree(const Core& core, const Residency& residency) {
  const uint32_t slots = core.limits.slots;
  if (slots == 0) return true;
  const bool must = residency.wanted == nullptr || residency.wanted->must;
  // The last slot is for what must be loaded next; MAY versions do not stand in its way.
  const uint32_t others = SlotsUsed(core) - (IsUncertain(core, residency) ? 1 : 0);
  return others + (must ? 0 : 1) < slots;
}

void SaySlot(const Core& core, Residency& residency) {
  std::string& no_slot = std::get<at::Fetched>(residency.phase).no_slot;
  no_slot.clear();
  if (!Must(residency) || core.limits.slots == 0) return;
  if (SlotsKept(core, residency) < core.limits.slots) return;
  no_slot = absl::StrCat("all ", core.limits.slots,
                         " slots of the engine hold what must stay; give it more (",
                         ToAbsl(fleet::SlotsFlag(core.limits.kind)),
                         "), keep fewer versions, or end a lease or an alias");
}

// Idle ones first, and of those the oldest; a busy one would not be gone any sooner than it is
// idle.
bool MakeRoom(Core& core) {
  if (!WaitsForASlot(core)) return false;
  Residency* leaves = nullptr;
  for (auto& [name, residency] : core.residencies) {
    if (residency.Is<at::Unloading>()) return false;
    if (!IsOnEngine(core, residency) || !IsIdle(core, residency)) continue;
    if (IsLeaving(core, residency)) return false;
    const fleet::WantedVersion* wanted = residency.wanted;
    if (wanted == nullptr || wanted->must || core.IsRowTarget(name)) continue;
    if (leaves == nullptr || wanted->eviction_rank < leaves->wanted->eviction_rank)
      leaves = &residency;
  }
  if (leaves != nullptr) leaves->evicting = true;
  return leaves != nullptr;
}

}  // namespace lorry::proxy
