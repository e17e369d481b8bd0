#include "services/engine_proxy/machine/demand.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "services/engine_proxy/machine/slots.h"

namespace lorry::proxy {
namespace {

// A decision that the row has yet to follow names it.
bool IsToBeFollowed(const Core& core, const Residency& residency) {
  const fleet::DesiredRow* wanted = core.WantedRow(residency.key.adapter);
  if (wanted == nullptr || wanted->mode != fleet::RowMode::kOpen) return false;
  if (wanted->target != residency.name) return false;
  const auto row = core.rows.find(residency.key.adapter);
  if (row == core.rows.end()) return true;
  const RowRecord& record = row->second.record;
  const bool stands = record.open && record.target == residency.name;
  return !stands && wanted->epoch >= record.epoch;
}

// Calls that bind go first: whoever made one keeps others waiting until it is answered.
std::optional<uint32_t> PlaceInLine(const Core& core, const AdapterName& awaited) {
  const auto it = std::find(core.waiting.begin(), core.waiting.end(), awaited);
  if (it == core.waiting.end()) return std::nullopt;
  return static_cast<uint32_t>(core.bindings.calls.size()) +
         static_cast<uint32_t>(it - core.waiting.begin());
}

std::optional<uint32_t> PlaceOfBound(const Core& core, const EngineName& name) {
  uint32_t place = 0;
  for (const PendingBind& call : core.bindings.calls) {
    if (call.made.has_value() && call.made->name == name) return place;
    ++place;
  }
  return PlaceInLine(core, AdapterName(name.value));  // as the door says it of bindings
}

}  // namespace

bool IsOnDemand(const Core& core, const EngineName& name) {
  const Residency* residency = core.Find(name);
  return residency != nullptr && residency->wanted != nullptr && residency->wanted->on_demand;
}

bool MustBeLoaded(const Core& core, const Residency& residency) {
  const fleet::WantedVersion* wanted = residency.wanted;
  if (wanted == nullptr) return false;
  return wanted->must || (wanted->on_demand && IsToBeFollowed(core, residency));
}

std::optional<uint32_t> PlaceOf(const Core& core, const Residency& residency) {
  if (residency.wanted == nullptr || !residency.wanted->on_demand) return std::nullopt;
  if (core.IsBound(residency.name)) return PlaceOfBound(core, residency.name);
  if (core.waiting.empty()) return std::nullopt;
  const auto row = core.rows.find(residency.key.adapter);
  if (row == core.rows.end() || row->second.record.target != residency.name) return std::nullopt;
  return PlaceInLine(core, residency.key.adapter);
}

bool IsNeededNow(const Core& core, const Residency& residency) {
  return MustBeLoaded(core, residency) || PlaceOf(core, residency).has_value();
}

bool IsPutOff(const Core& core, const Residency& residency) {
  const auto* fetched = std::get_if<at::Fetched>(&residency.phase);
  return fetched != nullptr && fetched->put_off.has_value() && core.now < residency.retry_at;
}

std::string WhyAway(const Core& core, const Residency& residency) {
  if (const auto* failed = std::get_if<at::Failed>(&residency.phase))
    return absl::StrCat("it failed here: ", failed->mishap.reason, ", ", failed->mishap.detail);
  if (core.IsWedged()) return "the engine's registry hangs, and loads nothing before a restart";
  if (std::string why = WhyUnservable(core, residency); !why.empty()) return why;
  if (!core.IsWantedLoaded(residency))
    return "this engine may not load it now: an engine died of it, or another one tries it first";
  if (residency.IsAny<at::Absent, at::Fetching, at::Cancelling>()) return "its files are fetched";
  if (residency.IsAny<at::Loading, at::Verifying, at::Probing, at::Doubted>())
    return "the engine is loading it now";
  if (IsPutOff(core, residency)) {
    const at::Mishap& why = *std::get<at::Fetched>(residency.phase).put_off;
    return absl::StrCat("its load is tried again in a moment: ", why.reason, ", ", why.detail);
  }
  if (IsSlotFree(core, residency)) return "the engine is busy with another adapter or a pause";
  return absl::StrCat("the engine's ", core.limits.slots, " adapter slots are held by ",
                      WhoHoldsSlots(core));
}

std::string WhyUnservable(const Core& core, const Residency& residency) {
  if (core.limits.kind == fleet::EngineKind::kUnknown) return "";
  if (residency.render != fleet::RenderFor(core.limits.kind, residency.traits)) {
    return "its files were written for another kind of engine, which scales weights otherwise; "
           "what a framework loaded it has to load again";
  }
  return fleet::WhyNotServable(core.limits, residency.traits);
}

}  // namespace lorry::proxy
