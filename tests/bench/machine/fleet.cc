#include "tests/bench/machine/fleet.h"

#include <malloc.h>

#include <algorithm>
#include <ctime>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/check.h"
#include "services/sync_orchestrator/machine/keys.h"
#include "tests/bench/machine/obey.h"

namespace lorry::sync {
namespace {

constexpr size_t kBatch = 256;  // events that share one Ready, as in the driver
const PoolName kRollout("rollout");
const JournalId kJournal("journal");

double CpuSeconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
}

VersionInfo VersionOf(const AdapterName& adapter, uint64_t number) {
  return {{adapter, RunId(1), VersionNumber(number)},
          Digest{absl::StrCat("sha256:", adapter.value, "/", number)},
          {.rank_max = 16, .modules = {"k_proj", "o_proj", "q_proj", "v_proj"}}};
}

EngineName NameOf(const VersionInfo& version) {
  return fleet::MakeEngineName(version.key, version.digest, fleet::Render::kPlain);
}

MemberId MemberOf(size_t engine) { return MemberId(absl::StrCat("engine-", 100'000 + engine)); }

// The engine serves version 1 of every adapter.
fleet::Observed Served(const std::vector<AdapterName>& adapters) {
  fleet::Observed observed;
  observed.journal = kJournal;
  observed.boot = BootId("boot");
  observed.health = fleet::MemberHealth::kReady;
  observed.limits = {.kind = fleet::EngineKind::kSglang, .rank_limit = 64, .slots = 1'000};
  observed.engine_version = "0.5.9";
  for (const AdapterName& adapter : adapters) {
    const VersionInfo version = VersionOf(adapter, 1);
    observed.rows.push_back({adapter, fleet::RowMode::kOpen, 1, Epoch(1), NameOf(version)});
    fleet::ObservedResidency residency;
    residency.name = NameOf(version);
    residency.key = version.key;
    residency.state = fleet::ResidencyState::kLoaded;
    observed.residencies.push_back(residency);
  }
  return observed;
}

}  // namespace

BenchFleet::BenchFleet(size_t engines, size_t adapters) : newest_(adapters, 1) {
  Records records;
  records[MetaKey().text] = MetaRecord{Term{1, 1}, Worth::kSettled};
  StoreListed listed;
  for (size_t i = 0; i < adapters; ++i) {
    const AdapterName adapter(absl::StrCat("adapter-", 1'000 + i));
    const VersionInfo version = VersionOf(adapter, 1);
    adapters_.push_back(adapter);
    records[PoolKey(adapter, kRollout).text] =
        PoolRecord{.epoch = Epoch(1), .history = {{Epoch(1), version}}, .considered = version.key};
    listed.adapters.push_back({adapter, {}, RunId(1)});
    listed.versions.push_back(version);
  }
  for (size_t i = 0; i < engines; ++i) {
    records[MemberKey(MemberOf(i)).text] = MemberRecord{.pool = kRollout, .journal = kJournal};
  }
  machine_.emplace(*Machine::Restore({}, records, now_));
  const fleet::Observed served = Served(adapters_);
  engines_.resize(engines);
  for (Engine& engine : engines_) engine.observed = served;
  const size_t before = mallinfo2().uordblks;
  for (size_t i = 0; i < engines; ++i)
    Take(SessionOpened{i + 1, MemberOf(i), kRollout, engines_[i].observed});
  Take(std::move(listed));
  bytes_ = mallinfo2().uordblks - before;  // no document was taken out of it yet
  Flush();
  Go([this] { return due_.empty() && !holds_.has_value(); });
}

void BenchFleet::Take(Event event) {
  const double began = CpuSeconds();
  machine_->Step(now_, std::move(event));
  spent_.seconds += CpuSeconds() - began;
  ++spent_.events;
  if (++batched_ >= kBatch) Flush();
}

void BenchFleet::Flush() {
  batched_ = 0;
  const double began = CpuSeconds();
  Ready ready = machine_->TakeReady();
  spent_.seconds += CpuSeconds() - began;
  wake_at_ = ready.wake_at;
  for (const Effect& effect : ready.effects) Run(effect);
}

void BenchFleet::Run(const Effect& effect) {
  if (const auto* desired = std::get_if<SetDesired>(&effect)) {
    engines_[desired->session - 1].desired = desired->Whole();
    Work(desired->session - 1);
  } else if (const auto* holds = std::get_if<SetHolds>(&effect)) {
    holds_ = holds->mark.revision;
  } else if (const auto* notify = std::get_if<NotifyWatch>(&effect)) {
    told_ = notify->event;
  }
}

// Fetching, loading and flipping a row take a while each.
void BenchFleet::Work(size_t engine) {
  if (std::exchange(engines_[engine].busy, true)) return;
  due_.push({now_ + 50 + static_cast<Tick>(prng_.Below(400)), ++numbers_, engine});
}

void BenchFleet::Go(const std::function<bool()>& until) {
  while (!until()) {
    if (holds_.has_value()) {
      Take(HoldsAcked{*std::exchange(holds_, std::nullopt), {}});
      Flush();
      continue;
    }
    LORRY_CHECK(!due_.empty() || wake_at_.has_value());
    const bool wakes = due_.empty() || (wake_at_.has_value() && *wake_at_ < due_.top().at);
    now_ = std::max(now_, wakes ? *wake_at_ : due_.top().at);
    if (wakes) Take(TimePassed{});
    while (!due_.empty() && due_.top().at <= now_) {
      const size_t i = due_.top().engine;
      due_.pop();
      engines_[i].busy = false;
      if (!StepTowards(engines_[i].desired, engines_[i].observed)) continue;
      Take(MemberObserved{i + 1, engines_[i].observed});
      Work(i);
    }
    Flush();
  }
}

WatchEvent BenchFleet::Publish(size_t adapter) {
  const VersionInfo version = VersionOf(adapters_[adapter], ++newest_[adapter]);
  told_.reset();
  Take(WatchOpened{++watch_, version.key, kRollout});
  Take(VersionStored{version});
  Flush();
  Go([this] { return told_.has_value() && told_->final; });
  WatchEvent told = *told_;
  Go([this] { return due_.empty(); });
  return told;
}

}  // namespace lorry::sync
