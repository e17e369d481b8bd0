#include "tests/sim/sim_leader.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/kv/store.h"
#include "tests/sim/narrate.h"
#include "tests/sim/wire.h"
#include "tests/sim/written.h"

namespace lorry::sim {
namespace {

// It looks at everything, so it is not done after each step.
constexpr uint64_t kStepsACheck = 8;

}  // namespace

bool SharedRecords::Holds(const std::optional<sync::MetaRecord>& fence) const {
  const auto stored = records.find("meta");
  return fence.has_value() ? stored != records.end() && stored->second == sync::RecordValue(*fence)
                           : stored == records.end();
}

void SharedRecords::Write(const std::vector<sync::Record>& changes) {
  for (const sync::Record& change : changes) {
    if (change.value.has_value()) {
      records[change.key] = *change.value;
      if (const auto* meta = std::get_if<sync::MetaRecord>(&*change.value))
        incarnation = std::max(incarnation, meta->term.incarnation);
    } else {
      records.erase(change.key);
    }
  }
}

Epoch SharedRecords::EpochOf(const AdapterName& adapter, const PoolName& pool) const {
  const auto known = records.find(absl::StrCat("pool/", adapter.value, "/", pool.value));
  // One that was written before any epoch was given out begins at the floor with the next reign.
  if (known != records.end()) {
    const Epoch epoch = std::get<sync::PoolRecord>(known->second).epoch;
    if (epoch.value != 0) return epoch;
  }
  const auto meta = records.find("meta");
  return meta != records.end() ? std::get<sync::MetaRecord>(meta->second).floor : Epoch();
}

absl::StatusOr<sync::Records> SharedRecords::Read() {
  return ReadBack(records, read, [](const std::string& text) { return sync::Decode(text); });
}

SimLeader::SimLeader(Sim& sim, SharedRecords& shared, uint64_t id, Hooks hooks)
    : sim_(sim),
      shared_(shared),
      id_(id),
      hooks_(std::move(hooks)),
      sources_(sim.oracle, shared.begun),
      driver_(sim, {.step = [this](const sync::Event& event) { Step(event); },
                    .write = [this](sync::Ready& ready) { return Write(ready); },
                    .run = [this](const sync::Effect& effect) { Perform(effect); },
                    .done = [this](sync::Ready& ready,
                                   const std::vector<sync::Event>& batch) { Finish(ready, batch); },
                    .die = [this] { Kill(); },
                    .crash = [this] { return sim_.faults.leader_crash; },
                    .tick = sync::TimePassed{},
                    .who = absl::StrCat("leader", id)}) {}

void SimLeader::Start(const sync::Config& config) {
  sim_.Trace("leader up", id_);
  shared_.writer = id_;
  const absl::StatusOr<sync::Records> records = shared_.Read();
  if (!records.ok()) return sim_.oracle.Violate(0, std::string(records.status().message()));
  absl::StatusOr<sync::Machine> machine = sync::Machine::Restore(config, *records, sim_.now());
  if (!machine.ok()) return sim_.oracle.Violate(0, std::string(machine.status().message()));
  driver_.Start(*std::move(machine));
  for (const auto& [key, value] : *records) {
    if (const auto* sync = std::get_if<sync::SyncRecord>(&value)) WatchSync(key, *sync);
  }
}

void SimLeader::Kill() {
  if (!alive()) return;
  sim_.Trace("leader down", id_);
  sim_.coverage.Add(machine().rows_taken());
  driver_.Stop();
  hooks_.died();
}

std::string SimLeader::WhyNotWritten(const sync::Status& status) const {
  const bool is_deposed = shared_.writer != id_;
  return driver_.IsAtRest() && !is_deposed ? sim::WhyNotWritten(status, shared_.records) : "";
}

void SimLeader::Step(const sync::Event& event) {
  if (sim_.oracle.violated()) return;
  ++sim_.steps;
  sim_.Trace("leader", event.index());
  if (sim_.narrates) Narrate(sim_, absl::StrCat("leader", id_), event);
  const auto* opened = std::get_if<sync::SessionOpened>(&event);
  sources_.Heard(event);
  const bool is_blind = opened != nullptr && sim_.plant == Plant::kDoorsAreNotBelieved;
  driver_.machine().Step(sim_.now(), is_blind ? Unbelieved(*opened) : event);
  if (++steps_ % kStepsACheck != 0) return;
  const std::string missed = driver_.machine().CheckDerived();
  if (!missed.empty()) sim_.oracle.Violate(0, "what an event changes was missed: " + missed);
}

// What it says, but for what these records do not know of.
sync::SessionOpened SimLeader::Unbelieved(sync::SessionOpened opened) const {
  opened.observed.term = std::min(opened.observed.term, driver_.machine().term());
  for (fleet::ObservedRow& row : opened.observed.rows) {
    const Epoch known = shared_.EpochOf(row.adapter, opened.pool);
    row.epoch = std::min(row.epoch, known);
    row.barrier = std::min(row.barrier, known);
  }
  return opened;
}

bool SimLeader::Write(sync::Ready& ready) {
  std::erase_if(ready.records, [&](const sync::Record& record) {
    return (sim_.plant == Plant::kDecisionIsNotWritten && record.key.starts_with("decision/")) ||
           (sim_.plant == Plant::kLeaseIsNotWritten && record.key.starts_with("lease/"));
  });
  const bool is_deposed = shared_.writer != id_ || !shared_.Holds(ready.fence);
  if (is_deposed && sim_.plant != Plant::kFenceIsIgnored) return false;
  sources_.Writes(shared_.records, ready.records);
  CheckSize(ready.records);
  shared_.Write(ready.records);
  for (const sync::Record& record : ready.records) {
    if (sim_.narrates) Narrate(sim_, absl::StrCat("leader", id_), record);
    sim_.oracle.Durable(driver_.machine().term(), record);
    if (!record.value.has_value()) continue;
    if (const auto* sync = std::get_if<sync::SyncRecord>(&*record.value))
      WatchSync(record.key, *sync);
  }
  return true;
}

// Of what members say some words are kept, and a store takes only so much at once.
void SimLeader::CheckSize(const std::vector<sync::Record>& records) const {
  constexpr size_t kFewWords = 1'000, kMany = 32;
  size_t bytes = 0;
  for (const sync::Record& record : records) {
    if (!record.value.has_value()) continue;
    if (records.size() >= kMany) bytes += record.key.size() + Encode(*record.value).size();
    const auto* sync = std::get_if<sync::SyncRecord>(&*record.value);
    if (sync == nullptr) continue;
    for (const sync::SyncMember& member : sync->members) {
      if (member.words.size() > kFewWords)
        sim_.oracle.Violate(0, record.key + " has all that " + member.member.value + " says");
    }
  }
  if (bytes > kv::kTransactionBytesMax)
    sim_.oracle.Violate(0,
                        absl::StrCat("a turn writes ", bytes, " bytes, more than a store takes"));
}

void SimLeader::WatchSync(const std::string& key, const sync::SyncRecord& sync) {
  const Epoch epoch = sync.epoch;
  if (std::exchange(syncs_[key], epoch) == epoch) return;
  const bool is_slow = sim_.faults.disk_full + sim_.faults.disk_slow > 0;
  const int64_t slack_ms = is_slow ? 15'000 : 1'000;
  const bool holds = sync.mode == fleet::SyncMode::kBarrier;
  const int64_t held_ms = holds ? kBarrierDeadlineMostMs + sim_.drain_deadline_most_ms : 0;
  sim_.queue.In(kStageDeadlineMs + held_ms + slack_ms, [this, key, epoch] {
    const auto stored = shared_.records.find(key);
    if (!alive() || stored == shared_.records.end()) return;
    // What was lost holds everything up until it is adopted.
    const bool is_settled = machine().GetStatus().footing == sync::Footing::kSettled;
    if (is_settled && std::get<sync::SyncRecord>(stored->second).epoch == epoch)
      sim_.oracle.Violate(11, key + " outlived its stage deadline");
  });
}

void SimLeader::Perform(const sync::Effect& effect) {
  if (sim_.narrates) Narrate(sim_, absl::StrCat("leader", id_), effect);
  if (const auto* desired = std::get_if<sync::SetDesired>(&effect)) hooks_.desired(*desired);
  if (const auto* end = std::get_if<sync::EndSession>(&effect)) hooks_.end_session(*end);
  if (const auto* holds = std::get_if<sync::SetHolds>(&effect)) hooks_.holds(*holds);
  if (const auto* notify = std::get_if<sync::NotifyWatch>(&effect)) {
    sources_.Tells(*notify);
    hooks_.notify(*notify);
  }
}

void SimLeader::Finish(const sync::Ready& ready, const std::vector<sync::Event>& batch) {
  for (const sync::Reply& reply : ready.replies) hooks_.reply(reply);
  for (const sync::Event& event : batch) {
    std::visit(
        [this](const auto& e) {
          if constexpr (requires { e.request; }) sim_.oracle.MustBeAnswered(e.request);
        },
        event);
    hooks_.taken(event);
  }
  sources_.TurnIsOver();
}

}  // namespace lorry::sim
