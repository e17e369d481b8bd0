#include "services/engine_proxy/machine/fetching.h"

#include <algorithm>

#include "services/engine_proxy/machine/loading.h"
#include "services/engine_proxy/machine/residency.h"

namespace lorry::proxy {
namespace {

bool IsCompared(const Core& core, const Residency& residency) {
  return core.base_model.has_value() && residency.directory.has_value() &&
         residency.directory->compared_with == core.base_count;
}

// Ends a fetch that is tried again at `retry_at` without anybody asking for it.
void PutOff(Core& core, Residency& residency, const FetchFailed& event, int64_t wait_ms) {
  residency.retry_at = core.now + wait_ms;
  Move(core, residency, ResidencyEvent::kFetchPutOff);
  std::get<at::Absent>(residency.phase).put_off =
      at::Mishap{fleet::Failure::kNone, event.reason, event.detail};
}

}  // namespace

bool Fits(const Core& core, const Residency& residency) {
  return core.base_unchecked || (IsCompared(core, residency) && residency.directory->fits);
}

bool IsMisfit(const Core& core, const Residency& residency) {
  return !core.base_unchecked && IsCompared(core, residency) && !residency.directory->fits;
}

bool MayFetch(const Core& core, const Residency& residency, uint32_t fetches) {
  if (!core.IsWanted(residency) || core.now < residency.retry_at) return false;
  // The directory that is read for a call just now may turn out to be this binding's.
  if (core.bindings.reading != 0 && IsBinding(residency)) return false;
  // SGLang may load a listed name again by itself, so it has to be unloaded before its directory is
  // written anew, and a list after that has to show it.
  return fetches < core.config.fetches_limit && !core.registry.listing.contains(residency.name);
}

bool MayDelete(const Core& core, const Residency& residency) {
  if (core.now < residency.retry_at) return false;
  if (core.bindings.reading != 0 && IsBinding(residency)) return false;
  // Nobody can have a directory open that no engine was ever asked to read. It is removed at once,
  // so that versions which are published while an engine is down do not fill the memory.
  if (!residency.directory->asked && !core.IsListed(residency)) return true;
  if (core.boot.empty() || !core.answers || !core.FreshlyListed(residency)) return false;
  if (core.IsListed(residency) || MayBeRead(core, residency)) return false;
  return std::none_of(core.registry.listing.begin(), core.registry.listing.end(),
                      [&](const auto& entry) { return entry.second == residency.directory->path; });
}

void HandleFetchProgress(Core& core, const FetchProgress& event) {
  Residency* residency = core.FindAt<at::Fetching>(event.op);
  if (residency == nullptr) return;
  auto& fetching = std::get<at::Fetching>(residency->phase);
  fetching.bytes_done = event.bytes_done;
  fetching.bytes_total = event.bytes_total;
  fetching.waits_for = event.waits_for;
}

void HandleFetchDone(Core& core, const FetchDone& event) {
  Residency* residency = core.FindAt<at::Fetching>(event.op);
  if (residency == nullptr) residency = core.FindAt<at::Cancelling>(event.op);
  if (residency == nullptr) return;
  residency->directory = Directory{.path = event.path, .proven = true};
  residency->tries = residency->waits = 0;
  residency->loaded_on = BootId();
  Move(core, *residency, ResidencyEvent::kFetched);
}

void HandleFetchFailed(Core& core, const FetchFailed& event) {
  if (Residency* cancelled = core.FindAt<at::Cancelling>(event.op)) {
    Move(core, *cancelled, ResidencyEvent::kFetchEnded);
    return;
  }
  Residency* residency = core.FindAt<at::Fetching>(event.op);
  if (residency == nullptr) return;
  if (event.away) return PutOff(core, *residency, event, core.AwayBackoff(++residency->waits));
  residency->waits = 0;
  if (!event.permanent && residency->tries + 1 < core.config.fetch_tries) {
    ++residency->tries;
    return PutOff(core, *residency, event, core.Backoff(residency->tries));
  }
  Fail(core, *residency, ResidencyEvent::kFetchFailed,
       {fleet::Failure::kMember, event.reason, event.detail});
  if (event.permanent) residency->retry_at = core.now + core.config.retry_max_ms;
}

void HandleFetchCancelled(Core& core, const FetchCancelled& event) {
  if (Residency* residency = core.FindAt<at::Cancelling>(event.op))
    Move(core, *residency, ResidencyEvent::kFetchEnded);
}

void HandleHashed(Core& core, const DirectoryHashed& event) {
  Residency* residency = core.FindAt<at::Hashing>(event.op);
  if (residency == nullptr) return;
  residency->directory->proven = event.matches;
  residency->directory->broken = !event.matches;
  Move(core, *residency, event.matches ? ResidencyEvent::kProven : ResidencyEvent::kBroken);
}

void HandleShapes(Core& core, const ShapesChecked& event) {
  Residency* residency = core.FindAt<at::Checking>(event.op);
  if (residency == nullptr) return;
  Directory& directory = *residency->directory;
  if (event.outcome != Outcome::kOk) {
    directory.compared_with = 0;
    return Fail(core, *residency, ResidencyEvent::kUnreadable,
                {fleet::Failure::kMember, "DISK_FAILED", event.detail});
  }
  directory.fits = event.fit;
  directory.reference = event.reference;
  directory.differences = event.differences;
  if (!IsMisfit(core, *residency)) {
    Move(core, *residency, ResidencyEvent::kFits);
    return;
  }
  Fail(core, *residency, ResidencyEvent::kMisfit,
       {fleet::Failure::kMisfit, "BASE_MODEL_MISMATCH", event.detail});
}

void HandleDeleted(Core& core, const DirectoryDeleted& event) {
  Residency* residency = core.FindAt<at::Deleting>(event.op);
  if (residency == nullptr) return;
  if (event.outcome != Outcome::kOk) {
    residency->retry_at = core.now + core.config.poll_ms;
    Move(core, *residency, ResidencyEvent::kNotDeleted);
    return;
  }
  residency->directory.reset();
  residency->loaded_on = residency->tried_on = BootId();
  Move(core, *residency, ResidencyEvent::kDeleted);
}

}  // namespace lorry::proxy
