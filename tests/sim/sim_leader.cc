#include "tests/sim/sim_leader.h"

#include "absl/strings/str_cat.h"
#include "tests/sim/narrate.h"

namespace lorry::sim {

bool SharedRecords::Write(const std::optional<sync::MetaRecord>& fence,
                          const std::vector<sync::Record>& changes, bool ignore_fence) {
  const auto meta = records.find("meta");
  std::optional<sync::MetaRecord> stored;
  if (meta != records.end()) stored = std::get<sync::MetaRecord>(meta->second);
  if (stored != fence && !ignore_fence) return false;
  for (const sync::Record& change : changes) {
    if (change.value.has_value()) {
      records[change.key] = *change.value;
    } else {
      records.erase(change.key);
    }
  }
  return true;
}

SimLeader::SimLeader(Sim& sim, SharedRecords& shared, uint64_t id, Hooks hooks)
    : sim_(sim), shared_(shared), id_(id), hooks_(std::move(hooks)) {}

void SimLeader::Start(const sync::Config& config) {
  sim_.Trace("leader up", id_);
  for (const auto& [key, value] : shared_.records) {
    absl::StatusOr<sync::RecordValue> decoded = sync::Decode(sync::Encode(value));
    if (!decoded.ok() || *decoded != value)
      sim_.oracle.Violate(0, "a record does not survive its text: " + key);
  }
  absl::StatusOr<sync::Machine> machine =
      sync::Machine::Restore(config, shared_.records, sim_.now());
  if (!machine.ok()) return sim_.oracle.Violate(0, std::string(machine.status().message()));
  machine_ = std::move(*machine);
  Pump();
}

void SimLeader::Kill() {
  if (!alive()) return;
  sim_.Trace("leader down", id_);
  machine_.reset();
  hooks_.died();
}

void SimLeader::Step(const sync::Event& event) {
  if (!alive() || sim_.oracle.violated()) return;
  sim_.Trace("leader", event.index());
  if (sim_.narrates) Narrate(sim_, absl::StrCat("leader", id_), event);
  machine_->Step(sim_.now(), event);
  Pump();
}

bool SimLeader::Dies() {
  if (!sim_.Chance(sim_.faults.leader_crash)) return false;
  Kill();
  return true;
}

void SimLeader::Pump() {
  const bool something = machine_->HasReady();
  sync::Ready ready = machine_->TakeReady();
  if (something && Dies()) return;
  std::erase_if(ready.records, [&](const sync::Record& record) {
    return (sim_.plant == Plant::kDecisionIsNotWritten && record.key.starts_with("decision/")) ||
           (sim_.plant == Plant::kLeaseIsNotWritten && record.key.starts_with("lease/"));
  });
  if (!ready.records.empty()) {
    if (!shared_.Write(ready.fence, ready.records, sim_.plant == Plant::kFenceIsIgnored))
      return Kill();  // deposed
    for (const sync::Record& record : ready.records) {
      if (sim_.narrates) Narrate(sim_, absl::StrCat("leader", id_), record);
      sim_.oracle.Durable(machine_->term(), record);
    }
  }
  for (const sync::Effect& effect : ready.effects) {
    if (Dies()) return;
    Perform(effect);
  }
  for (const sync::Reply& reply : ready.replies) hooks_.reply(reply);
  Wake(ready.wake_at);
}

void SimLeader::Perform(const sync::Effect& effect) {
  if (sim_.narrates) Narrate(sim_, absl::StrCat("leader", id_), effect);
  if (const auto* desired = std::get_if<sync::SetDesired>(&effect)) hooks_.desired(*desired);
  if (const auto* end = std::get_if<sync::EndSession>(&effect)) hooks_.end_session(*end);
  if (const auto* holds = std::get_if<sync::SetHolds>(&effect)) hooks_.holds(*holds);
  if (const auto* notify = std::get_if<sync::NotifyWatch>(&effect)) hooks_.notify(*notify);
}

void SimLeader::Wake(std::optional<Tick> at) {
  if (!at.has_value() || (wake_at_ > sim_.now() && wake_at_ <= *at)) return;
  wake_at_ = *at;
  sim_.queue.At(*at, [this, at = *at] {
    if (alive() && wake_at_ == at) Step(sync::TimePassed{});
  });
}

}  // namespace lorry::sim
