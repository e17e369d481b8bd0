#include "services/sync_orchestrator/machine/leases.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "lib/base/error.h"
#include "lib/base/strings.h"
#include "services/sync_orchestrator/machine/catalogue.h"
#include "services/sync_orchestrator/machine/desired.h"
#include "services/sync_orchestrator/machine/keys.h"
#include "services/sync_orchestrator/machine/roster.h"
#include "services/sync_orchestrator/machine/slots.h"
#include "services/sync_orchestrator/machine/verdicts.h"

namespace lorry::sync {
namespace {

// Of one adapter in one pool, whoever holds them: clients that call engines directly hold one each.
// All of them are looked at for each of its members.
constexpr size_t kLeasesLimit = 1'000;

// A week: longer than any holder goes without renewing, short enough for one that is gone.
constexpr int64_t kLeaseLimitMs = int64_t{7} * 24 * 3'600'000;

absl::StatusOr<const VersionInfo*> Select(const Core& core, const Selector& selector,
                                          const PoolName& pool) {
  const AdapterInfo* info = core.FindAdapter(selector.adapter);
  if (info == nullptr || !info->policy.pools.contains(pool)) {
    return NoPool(core, {selector.adapter, pool});
  }
  const VersionInfo* version = nullptr;
  switch (selector.kind) {
    case Selector::Kind::kLatest: {
      const auto it = core.pools.find({selector.adapter, pool});
      const Activation* committed = it != core.pools.end() ? it->second.committed() : nullptr;
      version = committed != nullptr ? &committed->version : nullptr;
      break;
    }
    case Selector::Kind::kNewest:
      version = NewestOf(core, selector.adapter);
      break;
    case Selector::Kind::kAlias: {
      const auto alias = core.aliases.find({selector.adapter, selector.alias});
      if (alias != core.aliases.end()) version = core.FindVersion(alias->second);
      break;
    }
    case Selector::Kind::kNumber:
      version = core.FindVersion({selector.adapter, info->current_run, selector.number});
      break;
    case Selector::Kind::kVersion:
      version = core.FindVersion({selector.adapter, selector.run, selector.number});
      break;
    case Selector::Kind::kBase:
      break;  // no version at all
  }
  if (version != nullptr) return version;
  return Error(absl::StatusCode::kNotFound, "UNKNOWN_VERSION",
               absl::StrCat("there is no ", fleet::ToString(selector), " for pool ", pool.value,
                            "; a number alone is one of the adapter's current run, r1.12 one of "
                            "another"));
}

Resolved Describe(const Core& core, const VersionInfo& version, const PoolName& pool) {
  Resolved resolved;
  resolved.version = version;
  std::set<fleet::Render> renders;
  for (const auto& [id, member] : core.members) {
    if (member.record.pool != pool || StandingOf(core, member) != MemberStanding::kReady) continue;
    const fleet::EngineKind kind = member.observed->limits.kind;
    renders.insert(fleet::RenderFor(kind, version.traits));
    ++resolved.members;
    if (IsLoaded(member, core.NameIn(version, kind))) ++resolved.loaded;
  }
  resolved.renders.assign(renders.begin(), renders.end());
  return resolved;
}

RecordKey KeyOf(const LeaseRecord& lease) {
  return LeaseKey(lease.version.key, lease.pool, lease.holder);
}

bool Releases(const LeaseAsked& ask, const LeaseRecord& lease) {
  const VersionKey& key = lease.version.key;
  if (lease.holder != ask.holder || lease.pool != ask.pool || key.adapter != ask.selector.adapter)
    return false;
  switch (ask.selector.kind) {
    case Selector::Kind::kNumber:  // of any run: the one that was current may not be any more
      return key.number == ask.selector.number;
    case Selector::Kind::kVersion:
      return key.run == ask.selector.run && key.number == ask.selector.number;
    default:
      return true;
  }
}

// Needs neither store nor version: whoever was promised something can always give it back.
Resolved Release(Core& core, const LeaseAsked& ask) {
  Resolved resolved;
  for (auto it = core.leases.begin(); it != core.leases.end();) {
    if (!Releases(ask, it->second.record)) {
      ++it;
      continue;
    }
    const VersionInfo& version = it->second.record.version;
    if (resolved.released++ == 0 || resolved.version.key < version.key) resolved.version = version;
    core.Erase(KeyOf(it->second.record));
    core.lease_due.Clear(it->first);
    it = core.leases.erase(it);
  }
  return resolved;
}

void Answer(Core& core, RequestId request, absl::Status status, Resolved resolved = {}) {
  core.replies.push_back(Reply{request, std::move(status), std::move(resolved), {}});
}

}  // namespace

void HandleLeaseAsked(Core& core, const LeaseAsked& event) {
  if (event.ttl_ms <= 0) {
    return Answer(core, event.request, absl::OkStatus(), Release(core, event));
  }
  if (event.ttl_ms > kLeaseLimitMs) {
    return Answer(core, event.request,
                  Error(absl::StatusCode::kInvalidArgument, "MESSAGE_INVALID",
                        absl::StrCat("a lease lasts a week at most, ", kLeaseLimitMs,
                                     " ms; renew it while you need it")));
  }
  if (core.footing == Footing::kUnread || core.footing == Footing::kStoreLost) {
    return Answer(core, event.request,
                  Error(absl::StatusCode::kUnavailable, "STORE_UNKNOWN",
                        core.footing == Footing::kUnread
                            ? std::string("the store was not read yet; retry")
                            : absl::StrCat(ToAbsl(Explain(core.footing)), "; then retry")));
  }
  const absl::StatusOr<const VersionInfo*> found = Select(core, event.selector, event.pool);
  if (!found.ok()) return Answer(core, event.request, found.status());
  const VersionInfo version = **found;
  const PoolId id{version.key.adapter, event.pool};
  if (const GroupVerdict* given_up = GivenUp(core, id, version.key))
    return Answer(core, event.request, StatusOf(*given_up, version.key));
  const RecordKey key = LeaseKey(version.key, event.pool, event.holder);
  if (!core.leases.contains(key.text)) {
    if (core.LeasesOf(id).size() >= kLeasesLimit) {
      return Answer(core, event.request,
                    Error(absl::StatusCode::kResourceExhausted, "TOO_MANY_LEASES",
                          absl::StrCat("adapter ", id.adapter.value, " has ", kLeasesLimit,
                                       " leases in pool ", id.pool.value,
                                       "; release some, or let several share a holder")));
    }
    RefreshDocuments(core);  // by which slots are counted
    const std::string why = WhyNoSlotForLease(core, event.pool, version);
    if (!why.empty()) {
      return Answer(core, event.request,
                    Error(absl::StatusCode::kFailedPrecondition, "NO_SLOT", why));
    }
  }
  const bool is_held = core.held.contains(version.key);
  // A renewal that is refused leaves what was promised before as it is.
  if (is_held || !core.leases.contains(key.text)) {
    Lease& lease = core.leases[key.text];
    lease.record = LeaseRecord{version, event.pool, event.holder, event.ttl_ms};
    lease.expires_at = core.now + event.ttl_ms;
    core.lease_due.Set(key.text, lease.expires_at);
    core.Save(key, lease.record);
  }
  if (!is_held) {
    // The store was asked to keep the version, and a lease is promised only once it has said so.
    return Answer(core, event.request,
                  Error(absl::StatusCode::kUnavailable, "HOLD_PENDING",
                        absl::StrCat("the store has not confirmed yet that it keeps ",
                                     ToString(version.key), "; retry")));
  }
  Answer(core, event.request, absl::OkStatus(), Describe(core, version, event.pool));
}

void AdvanceLeases(Core& core) {
  // While records or store are lost nothing is retired, and no lease ends.
  if (core.footing != Footing::kSettled) return;
  for (const std::string& key : core.lease_due.TakeDue(core.now)) {
    const auto it = core.leases.find(key);
    if (it == core.leases.end() || core.now < it->second.expires_at) continue;
    core.Erase(KeyOf(it->second.record));
    core.leases.erase(it);
  }
}

}  // namespace lorry::sync
