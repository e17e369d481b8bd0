#include "services/sync_orchestrator/rpc/gauges.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <memory>

namespace lorry::sync {
namespace {

// A scrape waits at most this long for the machine; the next one is seconds away.
constexpr int64_t kStatusDeadlineMs = 1'000;

constexpr MemberStanding kStandings[] = {MemberStanding::kJoining,  MemberStanding::kReady,
                                         MemberStanding::kAsleep,   MemberStanding::kWedged,
                                         MemberStanding::kExcluded, MemberStanding::kLost,
                                         MemberStanding::kDead};

constexpr char kToServing[] = "lorry_stored_to_serving_seconds";
constexpr char kLastServing[] = "lorry_last_serving_timestamp_seconds";

metrics::Labels LabelsOf(const std::string& adapter, const PoolName& pool) {
  return {{"adapter", adapter}, {"pool", pool.value}};
}

// A gauge of many adapters says nothing, so that there is no `other` of them: those with the first
// names are shown.
ServingMetrics::AdapterNames FirstOf(const ServingMetrics::AdapterNames& adapters) {
  const size_t shown = std::min(adapters.size(), metrics::kAdaptersMax);
  return {adapters.begin(), std::next(adapters.begin(), static_cast<std::ptrdiff_t>(shown))};
}

}  // namespace

ServingMetrics::ServingMetrics(metrics::Registry& registry)
    : registry_(registry),
      labels_([](const std::string& adapter) { return adapter; },
              [this](const std::string& adapter) LORRY_REQUIRES(mutex_) {
                for (const PoolName& pool : pools_) {
                  registry_.Remove(kToServing, LabelsOf(adapter, pool));
                  registry_.Remove(kLastServing, LabelsOf(adapter, pool));
                }
              }) {}

void ServingMetrics::OnServing(const AdapterName& adapter, const PoolName& pool, double seconds) {
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  MutexLock lock(mutex_);
  pools_.insert(pool);
  const metrics::Labels labels = LabelsOf(labels_.For(adapter.value), pool);
  registry_
      .AddHistogram(kToServing,
                    "From when the orchestrator saw a stored version until every engine that can "
                    "serves it",
                    metrics::DurationBuckets(), labels)
      .Observe(seconds);
  registry_
      .AddGauge(kLastServing, "Unix time at which a version was last served everywhere", labels)
      .Set(now.count());
}

void ServingMetrics::KeepOnly(const AdapterNames& adapters) {
  MutexLock lock(mutex_);
  labels_.KeepOnly(adapters);
}

SyncObserver::Sinks PhaseMetrics(metrics::Registry& registry, ServingMetrics& serving) {
  auto phases = std::make_shared<std::map<std::string, metrics::Histogram, std::less<>>>();
  for (const char* phase : {"stage", "commit", "activate"}) {
    (*phases)[phase] =
        registry.AddHistogram("lorry_sync_phase_seconds", "Time in a phase of a sync",
                              metrics::DurationBuckets(), {{"phase", phase}});
  }
  auto results = std::make_shared<std::map<std::string, metrics::Counter, std::less<>>>();
  for (const char* result : {"active", "failed", "superseded", "aborted"}) {
    (*results)[result] =
        registry.AddCounter("lorry_sync_total", "Syncs that ended", {{"result", result}});
  }
  return {.phase = [phases](std::string_view phase,
                            double seconds) { phases->find(phase)->second.Observe(seconds); },
          .ended = [results](std::string_view result) { results->find(result)->second.Add(); },
          .serving = [&serving](const AdapterName& adapter, const PoolName& pool,
                                double seconds) { serving.OnServing(adapter, pool, seconds); }};
}

int64_t LargestLag(const Status& status, const PoolStatus& pool) {
  int64_t lag = 0;
  for (const MemberStatus& member : status.members) {
    if (member.pool != pool.pool || member.standing != MemberStanding::kReady) continue;
    const std::vector<fleet::ObservedRow>& rows = member.observed.rows;  // sorted
    const auto row = std::ranges::lower_bound(rows, pool.adapter, {}, &fleet::ObservedRow::adapter);
    if (row == rows.end() || row->adapter != pool.adapter) continue;
    lag = std::max<int64_t>(lag, std::ranges::count_if(pool.history, [&](const Activation& made) {
                              return made.epoch > row->epoch;
                            }));
  }
  return lag;
}

int64_t PoisonedVersions(const Status& status) {
  std::set<VersionKey> versions;
  for (const VerdictStatus& verdict : status.verdicts) {
    if (verdict.verdict == Verdict::kPoisoned) versions.insert(verdict.version);
  }
  return static_cast<int64_t>(versions.size());
}

Gauges::Gauges(metrics::Registry& registry, Orchestrator& orchestrator, const StoreLink& store,
               ServingMetrics& serving, const Clock& clock)
    : registry_(registry),
      orchestrator_(orchestrator),
      store_(store),
      serving_(serving),
      clock_(clock),
      answers_(registry.AddGauge("lorry_orchestrator_answers",
                                 "1 where the orchestrator took a turn within a second of the "
                                 "scrape; 0: the other gauges are of before")) {
  registry.OnScrape([this] { Refresh(); });
}

void Gauges::Set(const Family& family, const metrics::Labels& labels, double value) {
  registry_.AddGauge(family.first, family.second, labels).Set(value);
  shown_[{family.first, labels}] = true;
}

void Gauges::Refresh() {
  const auto asked = orchestrator_.GetStatus(clock_.Now() + kStatusDeadlineMs);
  answers_.Set(asked.ok() ? 1 : 0);
  if (!asked.ok()) return;
  const std::shared_ptr<const Status> status = *asked;
  const std::map<AdapterName, VersionKey> newest_of = store_.Newest();
  ServingMetrics::AdapterNames adapters;
  for (const PoolStatus& pool : status->pools) adapters.insert(pool.adapter.value);
  for (const auto& [adapter, newest] : newest_of) adapters.insert(adapter.value);
  serving_.KeepOnly(adapters);
  const ServingMetrics::AdapterNames with_series = FirstOf(adapters);
  for (auto& [key, now] : shown_) now = false;
  for (const PoolStatus& pool : status->pools) {
    if (!with_series.contains(pool.adapter.value)) continue;
    ShowPool(pool);
    ShowLag(*status, pool);
  }
  ShowMembers(*status);
  for (const auto& [adapter, newest] : newest_of) {
    if (!with_series.contains(adapter.value)) continue;
    Set({"lorry_newest_version", "Newest version that the store holds in the current run"},
        {{"adapter", adapter.value}}, static_cast<double>(newest.number.value));
  }
  Set({"lorry_store_connected", "1 while the store's watch is open"}, {},
      store_.connected() ? 1 : 0);
  Set({"lorry_leases", "Leases that are alive"}, {}, static_cast<double>(status->leases.size()));
  Set({"lorry_poisoned_versions", "Versions that killed engines and are not staged any more"}, {},
      static_cast<double>(PoisonedVersions(*status)));
  Set({"lorry_orchestrator_term", "Term of this orchestrator's reign; grows with each start"}, {},
      static_cast<double>(status->term.term));
  std::erase_if(shown_, [this](const auto& entry) {
    if (!entry.second) registry_.Remove(entry.first.first, entry.first.second);
    return !entry.second;
  });
}

void Gauges::ShowPool(const PoolStatus& pool) {
  const metrics::Labels labels = LabelsOf(pool.adapter.value, pool.pool);
  if (pool.committed.has_value()) {
    Set({"lorry_sync_epoch", "Epoch of the last decision"}, labels,
        static_cast<double>(pool.committed->epoch.value));
    Set({"lorry_desired_version", "Version of the last decision"}, labels,
        static_cast<double>(pool.committed->version.key.number.value));
  }
  if (!pool.is_blocked) return;
  metrics::Labels blocked = labels;
  blocked["reason"] = pool.waits_for;
  Set({"lorry_sync_blocked", "1 while a version waits and cannot be staged or decided, by reason"},
      blocked, 1);
}

void Gauges::ShowMembers(const Status& status) {
  std::map<std::pair<PoolName, MemberStanding>, int> counts;
  for (const MemberStatus& member : status.members) {
    for (const MemberStanding standing : kStandings)
      counts[{member.pool, standing}] += member.standing == standing;
  }
  for (const auto& [key, count] : counts) {
    Set({"lorry_members", "Members by state"},
        {{"pool", key.first.value}, {"state", std::string(ToString(key.second))}}, count);
  }
}

void Gauges::ShowLag(const Status& status, const PoolStatus& pool) {
  if (!pool.committed.has_value()) return;
  const int64_t lag = LargestLag(status, pool);
  Set({"lorry_member_version_lag_max", "Largest lag of a READY member: decisions it is behind"},
      LabelsOf(pool.adapter.value, pool.pool), static_cast<double>(lag));
}

}  // namespace lorry::sync
