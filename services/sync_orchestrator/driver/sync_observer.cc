#include "services/sync_orchestrator/driver/sync_observer.h"

#include <string>

#include "absl/strings/str_split.h"

namespace lorry::sync {
namespace {

// Timelines that are remembered: watches ask for the newest few of each pool.
constexpr size_t kTimelinesMax = 1'000;

// "decision/<adapter>/<pool>" → pool.
PoolName PoolOf(const std::string& key) {
  const std::vector<std::string> parts = absl::StrSplit(key, '/');
  return PoolName(parts.size() == 3 ? parts[2] : "");
}

int64_t Between(Tick from, Tick to) { return from != 0 && to >= from ? to - from : 0; }

}  // namespace

SyncObserver::Timeline& SyncObserver::At(const Key& key) {
  const auto [it, is_new] = timelines_.try_emplace(key);
  if (is_new) {
    order_.push_back(key);
    if (order_.size() > kTimelinesMax) {
      timelines_.erase(order_.front());
      order_.erase(order_.begin());
    }
  }
  return it->second;
}

void SyncObserver::OnPersisted(const std::vector<Record>& records, Tick began, Tick now) {
  MutexLock lock(mutex_);
  for (const Record& record : records) {
    if (!record.value.has_value()) continue;
    if (const auto* sync = std::get_if<SyncRecord>(&*record.value)) {
      Timeline& timeline = At({sync->version.key, PoolOf(record.key)});
      if (timeline.staged_at == 0) timeline.staged_at = began;
    } else if (const auto* decision = std::get_if<DecisionRecord>(&*record.value)) {
      Timeline& timeline = At({decision->version, PoolOf(record.key)});
      if (!decision->commit) {
        timeline.staged_at = 0;  // the next try begins anew
        sinks_.ended("aborted");
        continue;
      }
      timeline.decided_at = now;
      timeline.commit_ms = now - began;
      sinks_.phase("stage", static_cast<double>(Between(timeline.staged_at, began)) / 1e3);
      sinks_.phase("commit", static_cast<double>(timeline.commit_ms) / 1e3);
    }
  }
}

void SyncObserver::OnActive(const VersionKey& version, const PoolName& pool, Tick now) {
  MutexLock lock(mutex_);
  Timeline& timeline = At({version, pool});
  if (timeline.active_at != 0 || timeline.decided_at == 0) return;
  timeline.active_at = now;
  sinks_.phase("activate", static_cast<double>(Between(timeline.decided_at, now)) / 1e3);
}

PhaseTimes SyncObserver::Times(const VersionKey& version, const PoolName& pool, Tick watched_since,
                               Tick now) {
  MutexLock lock(mutex_);
  const Timeline& t = At({version, pool});
  const Tick stage_end = t.decided_at != 0 ? t.decided_at - t.commit_ms : now;
  return PhaseTimes{.wait_ms = Between(watched_since, t.staged_at != 0 ? t.staged_at : now),
                    .stage_ms = Between(t.staged_at, stage_end),
                    .commit_ms = t.commit_ms,
                    .activate_ms = Between(t.decided_at, t.active_at != 0 ? t.active_at : now)};
}

}  // namespace lorry::sync
