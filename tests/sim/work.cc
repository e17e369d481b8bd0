#include "tests/sim/work.h"

#include "absl/strings/str_cat.h"

namespace lorry::sim {
namespace {

constexpr int64_t kSecond = 1'000;
const PoolName kRollout("rollout");

Harm DrawHarm(Sim& sim) {
  const Faults& faults = sim.faults;
  if (sim.Chance(faults.killer_version)) return Harm::kKillsAtLoad;
  if (sim.Chance(faults.kills_at_use)) return Harm::kKillsAtUse;
  if (sim.Chance(faults.refused_version)) return Harm::kRefusedByAll;
  return sim.Chance(faults.refused_somewhere) ? Harm::kRefusedBySome : Harm::kNone;
}

}  // namespace

void Work::Second() {
  for (const AdapterName& adapter : adapters_) On(adapter);
  if (Now("garbage", 10)) world_.store().CollectGarbage();
  if (Now("marks", 30)) Mark();
  for (auto& [member, proxy] : world_.proxies()) {
    const uint64_t requests = Below(4);
    for (uint64_t i = 0; i < requests && without_.Has("requests"); ++i) Request(*proxy);
  }
}

void Work::On(const AdapterName& adapter) {
  if (world_.store().IsArchived(adapter)) return;
  if (Below(6) == 0) Publish(adapter);
  if (Now("runs", 60)) Resume(adapter);
  const std::optional<VersionKey> newest = world_.store().Newest(adapter);
  if (!newest.has_value()) return;
  if (Now("watches", 25)) {
    const auto& pools = world_.store().adapters().at(adapter).policy.pools;
    auto pool = pools.begin();
    std::advance(pool, Below(pools.size()));
    const sync::WatchId watch = world_.Watch(*newest, pool->first);
    if (IsOneIn(absl::StrCat("closes ", adapter.value, sim_.now()), 200))
      sim_.queue.In(4 * kSecond, [this, watch] { world_.CloseWatch(watch); });
  }
  if (Now("aliases", 25)) {
    world_.store().SetAlias(adapter, AliasName("eval"), Below(3) == 0 ? std::nullopt : newest);
  }
  if (Now("leases", 20)) {
    Lease(adapter, Below(3) == 0 ? "other" : "client",
          Below(3) == 0 ? 0 : static_cast<int64_t>(Below(20 * kSecond)));
  }
  if (Now("overrides", 40)) Override(adapter);
  if (IsOneIn(absl::StrCat("again ", adapter.value, sim_.now()), 40)) OverrideAgain(adapter);
}

void Work::Publish(const AdapterName& adapter) {
  const VersionKey key = world_.store().Publish(adapter, std::nullopt, DrawHarm(sim_));
  if (Now("watches", 3)) world_.Watch(key, kRollout);
}

// The trainer goes back: a new run, whose numbers begin lower.
void Work::Resume(const AdapterName& adapter) {
  const std::optional<VersionKey> newest = world_.store().Newest(adapter);
  // Somebody waits for what the new run fences.
  const bool is_watched =
      newest.has_value() && IsOneIn(absl::StrCat("fenced ", adapter.value, sim_.now()), 700);
  if (is_watched && without_.Has("watches")) world_.Watch(*newest, kRollout);
  world_.store().OpenRun(adapter);
  const uint64_t back = newest.has_value() ? newest->number.value / 2 + 1 : 1;
  world_.store().Publish(adapter, VersionNumber(back), Harm::kNone);
}

void Work::Lease(const AdapterName& adapter, const std::string& holder, int64_t ttl_ms) {
  sync::LeaseAsked ask;
  ask.request = world_.NewRequest();
  const auto kind = Below(2) == 0 ? sync::Selector::Kind::kLatest : sync::Selector::Kind::kNewest;
  ask.selector = {adapter, kind, {}, {}, {}};
  SelectOtherwise(absl::StrCat("selects ", holder, ttl_ms, sim_.now()), ask.selector);
  ask.pool = kRollout;
  ask.holder = holder;
  ask.ttl_ms = ttl_ms;
  world_.Call(ask, ask.request);
}

// One of the versions that there are by its number, or by its run too, or an alias.
void Work::SelectOtherwise(const std::string& text, fleet::Selector& selector) {
  using Kind = fleet::Selector::Kind;
  if (!IsOneIn(text, 400)) return;
  selector.kind = IsOneIn("alias " + text, 300) ? Kind::kAlias : Kind::kNumber;
  selector.alias = AliasName("eval");
  if (IsOneIn("run " + text, 400)) selector.kind = Kind::kVersion;
  for (const auto& [version, info] : world_.store().versions()) {
    if (version.adapter != selector.adapter) continue;
    selector.run = version.run;
    selector.number = version.number;
    if (IsOneIn(absl::StrCat(version.number.value, text), 300)) return;
  }
}

void Work::AskDirectly(SimProxy& proxy) {
  constexpr int64_t kLastsMost = 20 * kSecond;  // less than drain_ms of the proxies
  for (const auto& [promise, until] : sim_.oracle.leases()) {
    if (until <= sim_.now() || proxy.pool() != kRollout) continue;
    if (const EngineName* name = proxy.LeasedName(promise.first)) {
      proxy.engine().AskDirectly(*name, 1 + static_cast<int64_t>(Below(kLastsMost)));
      return;
    }
  }
}

void Work::LeaseForLong(const AdapterName& adapter) { Lease(adapter, "keeper", 1'000 * kSecond); }

void Work::Override(const AdapterName& adapter) {
  sync::OverrideSet set;
  set.request = world_.NewRequest();
  set.adapter = adapter;
  set.pool = kRollout;
  const auto& versions = world_.store().versions();
  if (Below(2) == 0 && !versions.empty()) {
    auto it = versions.begin();
    std::advance(it, Below(versions.size()));
    if (it->first.adapter == adapter) set.version = it->first;
  }
  const std::string request_id = absl::StrCat(adapter.value, " ", set.request);
  if (IsOneIn(request_id, 600)) {
    set.request_id = request_id;
    asked_[adapter].push_back(set);
  }
  world_.Call(set, set.request);
}

// An operator who was not answered asks again, however late, and sometimes means another version.
void Work::OverrideAgain(const AdapterName& adapter) {
  const std::vector<sync::OverrideSet>& asked = asked_[adapter];
  if (asked.empty()) return;
  const std::string text = absl::StrCat("which ", adapter.value, sim_.now());
  size_t which = asked.size() - 1;
  while (which > 0 && IsOneIn(absl::StrCat(text, which), 300)) --which;
  sync::OverrideSet again = asked[which];
  again.request = world_.NewRequest();
  if (IsOneIn("other " + text, 300)) again.version = world_.store().Newest(adapter);
  world_.Call(again, again.request);
}

void Work::Mark() {
  sync::MemberMarked mark;
  mark.request = world_.NewRequest();
  mark.member = MemberId(absl::StrCat("e", 1 + Below(world_.proxies().size())));
  const sync::MemberMark marks[] = {sync::MemberMark::kExcluded, sync::MemberMark::kIncluded,
                                    sync::MemberMark::kDead};
  mark.mark = marks[Below(3)];
  mark.why = "test";
  world_.Mark(mark);
}

// By `latest`, by a name, of several children, of two adapters at once, or of the base model.
void Work::Request(SimProxy& proxy) {
  const int64_t lasts = sim_.Chance(sim_.faults.long_request)
                            ? 60 * kSecond
                            : 1 + static_cast<int64_t>(Below(3 * kSecond));
  const std::string& adapter = adapters_[Below(adapters_.size())].value;
  if (Below(3) == 0) {
    proxy.RequestSome(lasts);
    return;
  }
  SimDoor::Wish wish{{adapter}, 1, lasts};
  if (sim_.Chance(sim_.faults.children)) {
    if (Below(3) == 0) wish.adapters.push_back(adapters_[Below(adapters_.size())].value);
    if (Below(4) == 0) wish.adapters = {adapter + "@base"};
    wish.children = 1 + static_cast<uint32_t>(Below(8));
  }
  proxy.Request(wish);
}

}  // namespace lorry::sim
