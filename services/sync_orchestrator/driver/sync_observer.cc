#include "services/sync_orchestrator/driver/sync_observer.h"

#include <algorithm>
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

void SyncObserver::Follow(const Key& key, std::vector<Key>& follow) {
  if (followed_.insert(key).second) follow.push_back(key);
}

void SyncObserver::FollowWaiting(const Key& key, Tick now, std::vector<Key>& follow) {
  Timeline& timeline = At(key);
  if (timeline.seen_at == 0) timeline.seen_at = now;
  Follow(key, follow);
}

// The record is written again when a member drops out; another epoch is the next try, or a
// rollback.
void SyncObserver::HandleSync(const Key& key, Epoch epoch, Tick began) {
  Timeline& timeline = At(key);
  if (timeline.epoch != epoch || timeline.staged_at == 0) {
    // A version that is decided again, by a rollback, was seen for this when its sync began.
    const bool again = timeline.active_at != 0;
    const Tick seen_at = again || timeline.seen_at == 0 ? began : timeline.seen_at;
    timeline = Timeline{.epoch = epoch, .seen_at = seen_at, .staged_at = began};
  }
}

void SyncObserver::HandleDecision(const Key& key, const DecisionRecord& decision, Tick began,
                                  Tick now) {
  sinks_.ended(decision.commit ? "active" : "aborted");
  if (!decision.commit) return;
  Timeline& timeline = At(key);
  timeline.decided_at = now;
  timeline.commit_ms = now - began;
  sinks_.phase("stage", static_cast<double>(Between(timeline.staged_at, began)) / 1e3);
  sinks_.phase("commit", static_cast<double>(timeline.commit_ms) / 1e3);
}

std::vector<SyncObserver::Key> SyncObserver::OnPersisted(const std::vector<Record>& records,
                                                         Tick began, Tick now) {
  MutexLock lock(mutex_);
  std::vector<Key> follow;
  for (const Record& record : records) {
    if (!record.value.has_value()) {
      refused_.erase(record.key);
      continue;
    }
    const PoolName pool = PoolOf(record.key);
    if (const auto* sync = std::get_if<SyncRecord>(&*record.value)) {
      HandleSync({sync->version.key, pool}, sync->epoch, began);
    } else if (const auto* decision = std::get_if<DecisionRecord>(&*record.value)) {
      HandleDecision({decision->version, pool}, *decision, began, now);
      if (decision->commit) Follow({decision->version, pool}, follow);
    } else if (const auto* known = std::get_if<PoolRecord>(&*record.value)) {
      for (const VersionKey& version : known->pending) FollowWaiting({version, pool}, now, follow);
      std::vector<VersionKey>& refused = refused_[record.key];
      for (const VersionKey& version : known->refused) {
        const bool is_new = std::find(refused.begin(), refused.end(), version) == refused.end();
        if (is_new) sinks_.ended("failed");
      }
      refused = known->refused;
    }
  }
  return follow;
}

std::vector<SyncObserver::Key> SyncObserver::OnRestored(const Records& records, Tick now) {
  MutexLock lock(mutex_);
  std::vector<Key> follow;
  for (const auto& [key, value] : records) {
    if (const auto* sync = std::get_if<SyncRecord>(&value)) {
      HandleSync({sync->version.key, PoolOf(key)}, sync->epoch, now);
    } else if (const auto* known = std::get_if<PoolRecord>(&value)) {
      for (const VersionKey& version : known->pending) {
        FollowWaiting({version, PoolOf(key)}, now, follow);
      }
      refused_[key] = known->refused;
    }
  }
  return follow;
}

void SyncObserver::OnEnded(const Key& key, WatchEvent::State state, Tick now) {
  MutexLock lock(mutex_);
  followed_.erase(key);
  if (state == WatchEvent::State::kSuperseded) sinks_.ended("superseded");
  if (state == WatchEvent::State::kFailed) sinks_.ended("failed");
  if (state != WatchEvent::State::kActive) return;
  Timeline& timeline = At(key);
  if (timeline.active_at != 0 || timeline.decided_at == 0) return;
  timeline.active_at = now;
  sinks_.phase("activate", static_cast<double>(Between(timeline.decided_at, now)) / 1e3);
  sinks_.serving(key.first.adapter, key.second,
                 static_cast<double>(Between(timeline.seen_at, now)) / 1e3);
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
