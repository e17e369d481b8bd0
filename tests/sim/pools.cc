#include "tests/sim/pools.h"

#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/sync_orchestrator/machine/keys.h"

namespace lorry::sim {
namespace {

using Kind = fleet::PoolSource::Kind;

constexpr int64_t kSecond = 1'000;
constexpr uint64_t kPools = 0xf0110;
const AliasName kAlias("eval");
const PoolName kElsewhere("elsewhere");  // no engine here is of it

bool IsFollowed(const std::map<PoolName, fleet::PoolSource>& sources, const PoolName& pool) {
  return std::ranges::any_of(sources, [&](const auto& entry) {
    return entry.second.kind == Kind::kPool && entry.second.pool == pool;
  });
}

}  // namespace

void TakeOut(fleet::AdapterPolicy& policy, const PoolName& pool) {
  policy.pools.erase(pool);
  for (auto& [other, source] : policy.pools) {
    if (source.kind == Kind::kPool && source.pool == pool) source = {};
  }
  if (policy.pools.empty()) policy.pools[kElsewhere] = {};
}

Pools::Pools(World& world, const Mishaps& mishaps, uint64_t seed)
    : world_(world), mishaps_(mishaps), prng_(seed ^ kPools) {}

void Pools::DrawPast() {
  constexpr uint64_t kAdapters = 64, kDecisions = 64;
  sync::Records records{{"meta", sync::MetaRecord{Term{1, 1}, sync::Worth::kSettled}}};
  fleet::AdapterPolicy policy;
  policy.pools = {{kElsewhere, {}}};
  for (uint64_t i = 0; i < kAdapters; ++i) {
    const AdapterName adapter(absl::StrCat("many-", i));
    many_.push_back(adapter);
    world_.store().SetAdapter(adapter, policy);
    const RunId run = world_.store().OpenRun(adapter);
    sync::PoolRecord pool;
    for (uint64_t number = 1; number <= kDecisions; ++number) {
      // Of the last few the store knows what they are.
      const VersionKey key = number + 2 > kDecisions
                                 ? world_.store().Publish(adapter, VersionNumber(number))
                                 : VersionKey{adapter, run, VersionNumber(number)};
      const auto stored = world_.store().versions().find(key);
      sync::VersionInfo info{key, Digest{absl::StrCat(adapter.value, std::string(56, '-'))}};
      if (stored != world_.store().versions().end()) info = stored->second;
      pool.history.push_back({Epoch(number), std::move(info)});
    }
    pool.epoch = pool.history.back().epoch;
    pool.considered = pool.history.back().version.key;
    records[sync::PoolKey(adapter, kElsewhere).text] = std::move(pool);
  }
  world_.BeginWith(std::move(records));
}

void Pools::PublishAtOnce() {
  if (mishaps_.many == 0 || prng_.Below(20) != 0) return;
  for (const AdapterName& adapter : many_) world_.store().Publish(adapter, std::nullopt);
}

void Pools::Second(const AdapterName& adapter) {
  if (mishaps_.source > 0 && prng_.Chance(mishaps_.source)) ChangeSource(adapter);
  if (mishaps_.pool_out > 0 && prng_.Chance(mishaps_.pool_out)) TakeOutForAWhile(adapter);
  if (mishaps_.roll_back > 0 && prng_.Chance(mishaps_.roll_back)) RollBack(adapter);
}

void Pools::Set(const AdapterName& adapter, const Sources& sources) {
  fleet::AdapterPolicy policy = PolicyOf(adapter);
  policy.pools = sources;
  world_.store().SetAdapter(adapter, policy);
}

PoolName Pools::Some(const Sources& sources) {
  auto pool = sources.begin();
  std::advance(pool, prng_.Below(sources.size()));
  return pool->first;
}

// As the store would take it: who is followed follows no other pool.
fleet::PoolSource Pools::DrawSource(const Sources& sources, const PoolName& pool) {
  switch (prng_.Below(3)) {
    case 0:
      return {};
    case 1:
      return {Kind::kAlias, {}, kAlias};
    default: {
      const PoolName other = Some(sources);
      const bool may =
          other != pool && sources.at(other).kind != Kind::kPool && !IsFollowed(sources, pool);
      return may ? fleet::PoolSource{Kind::kPool, other, {}} : fleet::PoolSource{};
    }
  }
}

void Pools::ChangeSource(const AdapterName& adapter) {
  Sources sources = PolicyOf(adapter).pools;
  const PoolName pool = Some(sources);
  sources[pool] = DrawSource(sources, pool);
  Set(adapter, sources);
}

void Pools::TakeOutForAWhile(const AdapterName& adapter) {
  LetGo(adapter, Some(PolicyOf(adapter).pools));
  const int64_t most = prng_.Below(3) == 0 ? 20 * kSecond : 3 * kSecond;
  const auto away_ms = static_cast<int64_t>(prng_.Below(static_cast<uint64_t>(most)));
  world_.sim().queue.In(away_ms, [this, adapter] { TakeUp(adapter); });
}

void Pools::LetGoOnce(const PoolName& pool) {
  if (mishaps_.pool_out == 0) return;
  std::vector<AdapterName> adapters;
  for (const auto& [adapter, info] : world_.store().adapters()) {
    if (info.policy.pools.contains(pool)) adapters.push_back(adapter);
  }
  for (const AdapterName& adapter : adapters) world_.store().Publish(adapter, std::nullopt);
  world_.RunFor(static_cast<int64_t>(prng_.Below(kSecond)));
  for (const AdapterName& adapter : adapters) LetGo(adapter, pool);
  world_.RunFor(static_cast<int64_t>(prng_.Below(4 * kSecond)));
  for (const AdapterName& adapter : adapters) TakeUp(adapter);
}

void Pools::LetGo(const AdapterName& adapter, const PoolName& pool) {
  fleet::AdapterPolicy policy = PolicyOf(adapter);
  if (!policy.pools.contains(pool) || !whole_.emplace(adapter, policy.pools).second) return;
  if (mishaps_.source > 0 && prng_.Below(2) == 0) {
    policy.pools[pool] = {Kind::kAlias, {}, kAlias};
  } else {
    TakeOut(policy, pool);
  }
  Set(adapter, policy.pools);
}

void Pools::TakeUp(const AdapterName& adapter) {
  const auto whole = whole_.extract(adapter);
  if (!whole.empty()) Set(adapter, whole.mapped());
}

// While a pool syncs what it has from there. Some seconds later that is over.
void Pools::RollBack(const AdapterName& adapter) {
  if (world_.leader() == nullptr) return;
  const sync::Status status = world_.leader()->machine().GetStatus();
  const Sources& sources = PolicyOf(adapter).pools;
  for (const sync::PoolStatus& pool : status.pools) {
    const auto source = sources.find(pool.pool);
    if (pool.adapter != adapter || !pool.sync.has_value() || source == sources.end()) continue;
    if (source->second.kind != Kind::kPool) continue;
    for (const sync::PoolStatus& followed : status.pools) {
      if (followed.adapter != adapter || followed.pool != source->second.pool) continue;
      if (followed.history.size() < 2) continue;
      Override(adapter, followed.pool, (followed.history.end() - 2)->version.key);
      const auto lasts_ms = static_cast<int64_t>(prng_.Below(10 * kSecond));
      world_.sim().queue.In(
          lasts_ms, [this, adapter, to = followed.pool] { Override(adapter, to, std::nullopt); });
      return;
    }
  }
}

void Pools::Override(const AdapterName& adapter, const PoolName& pool,
                     const std::optional<VersionKey>& version) {
  const sync::OverrideSet set{world_.NewRequest(), adapter, pool, version};
  world_.Call(set, set.request);
}

void Pools::LiftPins() {
  if (mishaps_.pool_out + mishaps_.roll_back == 0 || world_.leader() == nullptr) return;
  for (const sync::PoolStatus& pool : world_.leader()->machine().GetStatus().pools) {
    if (pool.override_to.has_value()) Override(pool.adapter, pool.pool, std::nullopt);
  }
}

void Pools::Settle(const AdapterName& adapter, const PoolName& pool) {
  TakeUp(adapter);
  Sources sources = PolicyOf(adapter).pools;
  if (std::exchange(sources[pool], {}) != fleet::PoolSource{}) Set(adapter, sources);
}

}  // namespace lorry::sim
