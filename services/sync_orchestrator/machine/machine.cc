#include "services/sync_orchestrator/machine/machine.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/error.h"
#include "lib/base/first_after.h"
#include "lib/base/overload.h"
#include "services/sync_orchestrator/machine/adoption.h"
#include "services/sync_orchestrator/machine/catalogue.h"
#include "services/sync_orchestrator/machine/desired.h"
#include "services/sync_orchestrator/machine/keys.h"
#include "services/sync_orchestrator/machine/leases.h"
#include "services/sync_orchestrator/machine/plan.h"
#include "services/sync_orchestrator/machine/roster.h"
#include "services/sync_orchestrator/machine/sync.h"
#include "services/sync_orchestrator/machine/trials.h"
#include "services/sync_orchestrator/machine/verdicts.h"
#include "services/sync_orchestrator/machine/watches.h"

namespace lorry::sync {
namespace {

absl::Status Invalid(const std::string& key) {
  return Error(absl::StatusCode::kInternal, "RECORDS_INVALID",
               absl::StrCat("record ", key, " has a value of another kind"));
}

void Handle(Core& core, Event event) {
  std::visit(Overload{
                 [&](const StoreListed& e) { HandleListed(core, e); },
                 [&](const AdapterSet& e) { HandleAdapterSet(core, e); },
                 [&](const AdapterDeleted& e) { HandleAdapterDeleted(core, e); },
                 [&](const VersionStored& e) { HandleStored(core, e); },
                 [&](const VersionDeleted& e) { HandleDeleted(core, e); },
                 [&](const AliasSet& e) { HandleAliasSet(core, e); },
                 [&](const HoldsAcked& e) { HandleHoldsAcked(core, e); },
                 [&](SessionOpened& e) { HandleSessionOpened(core, std::move(e)); },
                 [&](const SessionLost& e) { HandleSessionLost(core, e); },
                 [&](MemberObserved& e) { HandleObserved(core, std::move(e)); },
                 [&](const LeaseAsked& e) { HandleLeaseAsked(core, e); },
                 [&](const OverrideSet& e) { HandleOverride(core, e); },
                 [&](const MemberMarked& e) { HandleMarked(core, e); },
                 [&](const FleetAdopted& e) { HandleAdopted(core, e); },
                 [&](const VerdictLifted& e) { HandleVerdictLifted(core, e); },
                 [&](const WatchOpened& e) { HandleWatchOpened(core, e); },
                 [&](const WatchClosed& e) { HandleWatchClosed(core, e); },
                 [&](const TimePassed&) {},
             },
             event);
}

absl::Status RestorePoolPart(Core& core, const std::string& key, const RecordValue& value) {
  const PoolId id{AdapterName(MiddlePart(key)), PoolName(LastPart(key))};
  if (const auto* pool = std::get_if<PoolRecord>(&value)) {
    core.pools[id].record = *pool;
  } else if (const auto* sync = std::get_if<SyncRecord>(&value)) {
    core.pools[id].sync = *sync;
    core.pools[id].sync_began = core.now;
  } else if (const auto* decision = std::get_if<DecisionRecord>(&value)) {
    core.pools[id].decision = *decision;
    core.pools[id].decided_at = core.now;
  } else if (const auto* requests = std::get_if<RequestsRecord>(&value)) {
    core.pools[id].requests = *requests;
  }
  return absl::OkStatus();
}

absl::Status RestoreOne(Core& core, const std::string& key, const RecordValue& value) {
  if (const auto* meta = std::get_if<MetaRecord>(&value)) {
    core.stored_meta = *meta;
    return key == MetaKey().text ? absl::OkStatus() : Invalid(key);
  }
  if (const auto* holds = std::get_if<HoldsRecord>(&value)) {
    core.holds_record = *holds;
    return key == HoldsKey().text ? absl::OkStatus() : Invalid(key);
  }
  if (const auto* record = std::get_if<MemberRecord>(&value)) {
    Member& member = core.members[MemberId(LastPart(key))];
    member.id = MemberId(LastPart(key));
    member.record = *record;
    member.lost_at = core.now;
    NoteStanding(core, member);
    return key == MemberKey(member.id).text ? absl::OkStatus() : Invalid(key);
  }
  if (const auto* lease = std::get_if<LeaseRecord>(&value)) {
    core.leases[key] = Lease{*lease, core.now + lease->ttl_ms};  // a new term restarts them
    core.lease_due.Set(key, core.now + lease->ttl_ms);
    const RecordKey its = LeaseKey(lease->version.key, lease->pool, lease->holder);
    return key == its.text ? absl::OkStatus() : Invalid(key);
  }
  if (const auto* verdict = std::get_if<VerdictRecord>(&value)) {
    core.verdicts[verdict->version] = *verdict;
    if (key == VerdictKey(verdict->version).text) return absl::OkStatus();
    core.Erase({.text = key});  // of an earlier version of Lorry
    core.Save(VerdictKey(verdict->version), *verdict);
    return absl::OkStatus();
  }
  return RestorePoolPart(core, key, value);
}

std::optional<Tick> WakeAt(const Core& core) {
  FirstAfter wake(core.now);
  wake.At(core.trial_due.next());
  if (!core.gathered) wake.At(GatheredAt(core));
  wake.At(core.sync_due.next());
  wake.At(core.lease_due.next());
  wake.At(core.watch_due.next());
  wake.At(core.standing_due.next());
  wake.At(core.resend.next());
  if (core.holds_acked != core.holds_revision) wake.At(core.holds_sent_at + core.config.resend_ms);
  return wake.first();
}

}  // namespace

Machine::Machine(std::unique_ptr<State> state) : state_(std::move(state)) {}
Machine::Machine(Machine&&) noexcept = default;
Machine& Machine::operator=(Machine&&) noexcept = default;
Machine::~Machine() = default;

absl::StatusOr<Machine> Machine::Restore(const Config& config, const Records& records, Tick now) {
  if (config.new_incarnation == 0) {
    return Error(absl::StatusCode::kInvalidArgument, "INCARNATION_INVALID",
                 "the incarnation must be 1 or more; seconds since 2026 do");
  }
  auto state = std::make_unique<State>();
  state->config = config;
  state->now = now;
  state->began_at = now;
  for (const auto& [key, value] : records) LORRY_RETURN_IF_ERROR(RestoreOne(*state, key, value));
  state->meta =
      state->stored_meta.value_or(MetaRecord{Term{config.new_incarnation, 0}, Worth::kNew});
  for (auto& [id, pool] : state->pools) {
    if (pool.record.epoch.value == 0) state->BeginAtFloor(pool);
  }
  ++state->meta.term.term;
  state->Save(MetaKey(), state->meta);
  return Machine(std::move(state));
}

void Machine::Step(Tick now, Event event) {
  if (now > state_->now) state_->now = now;
  Handle(*state_, std::move(event));
  Plan(*state_);
}

bool Machine::HasReady() const {
  return !state_->dirty.empty() || !state_->effects.empty() || !state_->replies.empty() ||
         !state_->unsaid.empty();
}

Ready Machine::TakeReady() {
  Ready ready;
  ready.fence = state_->stored_meta;
  for (auto& [key, value] : state_->dirty) ready.records.push_back({key, std::move(value)});
  state_->dirty.clear();
  state_->stored_meta = state_->meta;
  SendDocuments(*state_);
  ready.effects = std::exchange(state_->effects, {});
  ready.replies = std::exchange(state_->replies, {});
  ready.wake_at = WakeAt(*state_);
  return ready;
}

std::string Machine::CheckDerived() const { return WhatWasMissed(*state_); }

Work Machine::work() const { return state_->work; }
RowsTaken Machine::rows_taken() const { return state_->taken; }
Term Machine::term() const { return state_->meta.term; }

}  // namespace lorry::sync
