#include "tests/sim/world.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "lib/base/error.h"
#include "tests/sim/draw.h"
#include "tests/sim/narrate.h"

namespace lorry::sim {
namespace {

constexpr int64_t kWatchTakesMs = 2;  // a word of the store's, to a leader

std::string_view ToString(sync::WatchEvent::State state) {
  using State = sync::WatchEvent::State;
  switch (state) {
    case State::kWaiting:
      return "WAITING";
    case State::kStaging:
      return "STAGING";
    case State::kHolding:
      return "HOLDING";
    case State::kLocking:
      return "LOCKING";
    case State::kCommitted:
      return "DELIVERING";
    case State::kActive:
      return "ACTIVE";
    case State::kSuperseded:
      return "SUPERSEDED";
    case State::kFailed:
      return "FAILED";
    case State::kStored:
      return "STORED";
  }
  return "";
}

constexpr uint32_t kRankLimit = 16;  // of every engine

}  // namespace

World::World(uint64_t seed) : sim_(seed), store_(sim_) {
  sim_.oracle.OnCommit([this](const AdapterName& adapter, const PoolName& pool,
                              const VersionKey& version,
                              uint32_t members) { CheckCommit(adapter, pool, version, members); });
  sim_.oracle.OnVerdict([this](const sync::VerdictRecord& verdict) { NoteLeaves(verdict); });
  sim_.oracle.OnDead([this](const MemberId& member) { proxies_.at(member)->DeclaredDead(); });
  sim_.oracle.OnForgotten([this](const MemberId& member) {
    SimProxy& proxy = *proxies_.at(member);
    answers_.Forgotten(member);
    if (MayForgetLost(proxy.pool())) proxy.DeclaredDead();
  });
  store_.Watch([this](const sync::Event& event) {
    answers_.Heard(event);
    if (sim_.now() < watch_back_) return;
    const auto shared = std::make_shared<const sync::Event>(event);
    for (auto& [id, leader] : leaders_) {
      if (!leader->alive()) continue;
      // A watch is a stream: in order, and nothing of it is lost while its leader lives.
      sim_.queue.In(kWatchTakesMs, [this, id = id, shared] {
        if (SimLeader* alive = Find(id)) alive->Post(*shared);
      });
    }
  });
}

void World::RunFor(int64_t ms) {
  if (!sim_.oracle.violated()) sim_.queue.RunUntil(sim_.now() + ms);
}

SimProxy& World::AddMember(const std::string& id, fleet::EngineKind kind, uint32_t slots,
                           const PoolName& pool) {
  const MemberId member(id);
  fleet::EngineLimits limits;
  limits.kind = kind;
  limits.slots = slots;
  limits.rank_limit = kRankLimit;
  SimProxy::Hooks hooks;
  hooks.dial = [this, member] { Dial(member); };
  hooks.hang_up = [this, member] { BreakAll(member, -1); };
  hooks.stored = [this](const VersionKey& key) { return store_.Has(key); };
  hooks.image = [this](const Digest& digest) { return store_.Image(digest); };
  hooks.send = [this, member](const fleet::Observed& observed) {
    for (const auto& [id, session] : sessions_) {
      if (session.open && session.member == member) ToLeader(id, observed);
    }
  };
  auto proxy = std::make_unique<SimProxy>(sim_, member, pool, limits, std::move(hooks));
  SimProxy& added = *proxy;
  proxies_[member] = std::move(proxy);
  added.engine().Start();
  added.Start();
  return added;
}

void World::StartEngine(SimProxy& proxy) {
  proxy.engine().Start();
  proxy.EngineChanged();
}

void World::KillEngine(SimProxy& proxy) { proxy.engine().Kill(); }

// --- leaders

SimLeader* World::Find(uint64_t leader) {
  const auto it = leaders_.find(leader);
  return it != leaders_.end() && it->second->alive() ? it->second.get() : nullptr;
}

SimLeader* World::leader() { return Find(current_leader_); }

void World::StartLeader() {
  const uint64_t id = ++last_leader_;
  SimLeader::Hooks hooks;
  hooks.desired = [this](const sync::SetDesired& effect) { ToProxy(effect); };
  hooks.end_session = [this](const sync::EndSession& effect) { End(effect); };
  hooks.holds = [this, id](const sync::SetHolds& effect) { ToStore(id, effect); };
  hooks.notify = [this](const sync::NotifyWatch& effect) {
    const sync::WatchEvent& event = effect.event;
    answers_.Told(effect.watch, event);
    Watched& watched = watched_[effect.watch];
    watched.answer = event;
    watched.was_told = true;
    std::string note = absl::StrCat(
        "watch ", lorry::ToString(watched.version), ": ", std::string(ToString(event.state)),
        event.reason.empty() ? "" : " ", event.reason,
        event.members > 0 ? absl::StrCat(" ", event.done, " of ", event.members) : "",
        event.state == sync::WatchEvent::State::kSuperseded
            ? absl::StrCat(" by ", lorry::ToString(event.superseded_by))
            : "",
        event.final ? " (final)" : "");
    if (note == watched.note) return;
    watched.note = note;
    notes_.push_back(std::move(note));
  };
  hooks.reply = [this](const sync::Reply& reply) {
    sim_.oracle.Answered(reply.request);
    answers_.Replied(reply);
    replies_[reply.request] = reply;
    if (const auto back = taken_back_.find(reply.request); back != taken_back_.end())
      sim_.lives.TakenBack(back->second.value);
    if (const auto ask = leases_asked_.find(reply.request); ask != leases_asked_.end())
      NoteLease(ask->second, reply);
  };
  hooks.taken = [this, id](const sync::Event& event) {
    Heard(event);
    if (const auto* opened = std::get_if<sync::SessionOpened>(&event)) CheckRemembered(id, *opened);
  };
  hooks.died = [this, id] {
    for (auto& [session_id, session] : sessions_) {
      if (session.leader == id && session.open) Break(session_id);
    }
  };
  leaders_[id] = std::make_unique<SimLeader>(sim_, shared_, id, std::move(hooks));
  current_leader_ = id;
  sync::Config config;
  config.new_incarnation = shared_.incarnation + 1;
  config.forget_ms = forget_ms_.value_or(config.forget_ms);
  leaders_[id]->Start(config);
  all_had_time_at_ = sim_.now() + 2 * config.lost_after_ms;
  answers_.Listens(sim_.now());
  sim_.queue.In(sim_.Latency(20), [this, id] {
    if (SimLeader* alive = Find(id)) alive->Post(store_.List());
  });
}

void World::Heard(const sync::Event& event) {
  const auto know = [this](const sync::AdapterInfo& info) {
    sim_.oracle.PolicyHas(info.adapter, info.policy.pools);
  };
  if (const auto* closed = std::get_if<sync::WatchClosed>(&event)) answers_.Closed(closed->watch);
  if (const auto* set = std::get_if<sync::AdapterSet>(&event)) know(set->info);
  if (const auto* listed = std::get_if<sync::StoreListed>(&event))
    std::ranges::for_each(listed->adapters, know);
  const auto take = [this](Session& session, const fleet::Observed& observed) {
    session.sequence = observed.sequence;
    if (!session.silent.contains(observed.sequence))
      sim_.lives.Heard(session.member.value, observed.boot);
    SimProxy& proxy = *proxies_.at(session.member);
    for (const fleet::ObservedResidency& residency : observed.residencies) {
      const bool is_loaded = residency.state == fleet::ResidencyState::kLoaded;
      if (is_loaded && observed.boot == proxy.engine().boot()) proxy.HasTried(residency.key);
    }
  };
  if (const auto* lost = std::get_if<sync::SessionLost>(&event))
    sessions_.at(lost->session).is_over = true;
  if (const auto* opened = std::get_if<sync::SessionOpened>(&event))
    take(sessions_.at(opened->session), opened->observed);
  if (const auto* told = std::get_if<sync::MemberObserved>(&event)) {
    Session& session = sessions_.at(told->session);
    const bool is_news = !session.is_over && told->observed.sequence > session.sequence;
    if (is_news) take(session, told->observed);
  }
}

void World::KillLeader() {
  if (SimLeader* current = leader()) current->Kill();
}

void World::EndZombies() {
  for (auto& [id, leader] : leaders_) {
    if (id != current_leader_) leader->Kill();
  }
}

void World::NoteLeaves(const sync::VerdictRecord& verdict) {
  std::set<Leave> leaves;
  for (const auto& [group, its] : verdict.groups) {
    for (const auto& [member, leave] : its.leave)
      leaves.insert({member, leave.boot, leave.journal});
  }
  const std::set<Leave> before = std::exchange(leaves_[verdict.version], leaves);
  for (const auto& leave : before) {
    if (!leaves.contains(leave)) proxies_.at(std::get<0>(leave))->HasTried(verdict.version);
  }
  for (const auto& leave : leaves) {
    const auto& [member, boot, journal] = leave;
    if (!before.contains(leave)) proxies_.at(member)->MayTry(verdict.version, journal);
  }
}

// By other records: what came of some tries a leader may have heard, and they do not know any more.
void World::NoteLeavesAnew() {
  for (const auto& [version, leaves] : std::exchange(leaves_, {})) {
    for (const auto& leave : leaves) proxies_.at(std::get<0>(leave))->HasTried(version);
  }
  for (const auto& [record, value] : shared_.records) {
    if (const auto* verdict = std::get_if<sync::VerdictRecord>(&value)) NoteLeaves(*verdict);
  }
}

bool World::IsAttached(const MemberId& member) const {
  return std::any_of(sessions_.begin(), sessions_.end(), [&](const auto& entry) {
    const Session& session = entry.second;
    return session.open && session.member == member && session.leader == current_leader_;
  });
}

void World::AdoptIfAsked() {
  SimLeader* current = leader();
  if (current == nullptr) return;
  const sync::Footing footing = current->machine().GetStatus().footing;
  if (footing != sync::Footing::kRecordsLost && footing != sync::Footing::kStoreLost) return;
  const sync::RequestId request = NewRequest();
  const sync::FleetAdopted adopted{request, /*newest=*/true};
  // An operator who does not wait for the engines must be refused: the oracle is told nothing.
  const bool in_haste = footing == sync::Footing::kRecordsLost && sim_.now() < all_had_time_at_;
  if (in_haste) {
    Call(adopted, request);
    return;
  }
  Oracle::Remembrance remembered;
  for (const auto& [member, proxy] : proxies_) {
    if (!IsAttached(member)) return;
    for (const fleet::ObservedRow& row : proxy->machine().Observe().rows) {
      if (row.target.empty()) continue;
      auto& latest = remembered[{row.adapter, proxy->pool()}];
      latest = std::max(latest, {row.incarnation, row.epoch});
    }
  }
  sim_.oracle.Adopted(
      remembered, [&](const VersionKey& version) { return store_.versions().contains(version); });
  Call(adopted, request);
}

void World::BreakWatch(int64_t ms) {
  watch_back_ = std::max(watch_back_, sim_.now() + ms);
  answers_.Listens(watch_back_);
  sim_.queue.At(watch_back_, [this] {
    if (sim_.now() < watch_back_) return;
    for (auto& [id, leader] : leaders_) {
      // Behind what the stream carried when it broke.
      sim_.queue.In(kWatchTakesMs, [this, id = id, listed = store_.List()] {
        if (SimLeader* alive = Find(id)) alive->Post(listed);
      });
    }
  });
}

void World::AbandonLeader() { current_leader_ = 0; }

// --- the network

bool World::Lost(const MemberId& member) {
  const auto it = partitioned_until_.find(member);
  return it != partitioned_until_.end() && sim_.now() < it->second;
}

void World::Send(const MemberId& member, const std::function<void()>& then) {
  const int copies = sim_.Chance(sim_.faults.duplicate) ? 2 : 1;
  for (int copy = 0; copy < copies; ++copy) {
    if (Lost(member) || sim_.Chance(sim_.faults.drop)) continue;
    const int64_t takes = sim_.faults.message_ms + sim_.Latency(sim_.faults.delay_ms);
    sim_.queue.In(takes, [this, member, then] {
      if (!Lost(member)) then();
    });
  }
}

void World::Partition(const MemberId& member, Tick until) {
  Tick& known = partitioned_until_[member];
  known = std::max(known, until);
  // Keep-alives end the sessions of a longer one, on both sides, each in its own time.
  if (until - sim_.now() > 3'000) sim_.queue.In(3'000, [this, member] { BreakAll(member, 0); });
}

void World::Dial(const MemberId& member) {
  sim_.queue.In(sim_.Latency(200),
                [this, member, life = proxies_.at(member)->life()] { Attach(member, life); });
}

void World::Attach(const MemberId& member, uint64_t life) {
  SimProxy& proxy = *proxies_.at(member);
  if (!proxy.alive() || proxy.life() != life) return;
  for (const auto& [id, session] : sessions_) {
    if (session.open && session.member == member && session.life == life) return;
  }
  SimLeader* current = leader();
  if (current == nullptr || Lost(member)) {
    sim_.queue.In(500, [this, member, life] { Attach(member, life); });
    return;
  }
  const sync::SessionId id = ++last_session_;
  sessions_[id] = Session{current->id(), member, life, proxy.pool()};
  left_.erase(member);
  const bool is_stale = sim_.Chance(sim_.faults.stale_hello);
  const fleet::Observed said = proxy.Hello(is_stale);
  if (is_stale || !proxy.TellsOfDeath()) sessions_[id].silent.insert(said.sequence);
  const Wire<fleet::Observed>::Shared hello = told_[member].Carry(sim_.oracle, said);
  const uint64_t leader_id = current->id();
  sim_.queue.In(sim_.Latency(10), [this, id, member, life, hello, leader_id] {
    SimLeader* alive = Find(leader_id);
    if (alive == nullptr || !sessions_.at(id).open) return;
    alive->Post(sync::SessionOpened{id, member, sessions_.at(id).pool, *hello});
    if (sessions_.at(id).open && proxies_.at(member)->life() == life)
      proxies_.at(member)->SessionUp();
  });
}

// Both ends learn of it, each in its own time.
void World::Break(sync::SessionId id) {
  Session& session = sessions_.at(id);
  if (!session.open) return;
  session.open = false;
  sim_.queue.In(sim_.Latency(1'000), [this, id] {
    if (SimLeader* alive = Find(sessions_.at(id).leader)) alive->Post(sync::SessionLost{id});
  });
  sim_.queue.In(sim_.Latency(1'000), [this, id] {
    const Session& ended = sessions_.at(id);
    SimProxy& proxy = *proxies_.at(ended.member);
    if (!proxy.alive() || proxy.life() != ended.life) return;
    proxy.SessionDown();
    Dial(ended.member);
  });
}

void World::BreakAll(const MemberId& member, int64_t) {
  for (auto& [id, session] : sessions_) {
    if (session.member == member && session.open) Break(id);
  }
}

void World::ToLeader(sync::SessionId id, const fleet::Observed& observed) {
  Session& session = sessions_.at(id);
  if (!proxies_.at(session.member)->TellsOfDeath()) session.silent.insert(observed.sequence);
  const auto carried = told_[session.member].Carry(sim_.oracle, observed);
  Send(session.member, [this, id, carried] {
    SimLeader* alive = Find(sessions_.at(id).leader);
    if (alive != nullptr) alive->Post(sync::MemberObserved{id, *carried});
  });
}

void World::ToProxy(const sync::SetDesired& effect) {
  sim_.oracle.DesiredSent(effect.term);
  if (!sessions_.contains(effect.session)) return;
  const fleet::Desired& desired = desired_[effect.member] = effect.Whole();
  const auto carried = asked_[effect.member].Carry(sim_.oracle, desired);
  Send(effect.member, [this, id = effect.session, carried] {
    const Session& session = sessions_.at(id);
    SimProxy& proxy = *proxies_.at(session.member);
    if (proxy.life() == session.life) proxy.Receive(*carried);
  });
}

void World::PutToSleep(const MemberId& member, int64_t ms) {
  SimProxy& proxy = *proxies_.at(member);
  proxy.FallsAsleep();
  proxy.EngineChanged();
  sim_.queue.In(ms, [this, &proxy, text = absl::StrCat(member.value, sim_.now())] {
    // Nobody can tell who has not seen that it slept.
    const bool is_known = proxy.knows_asleep() || sim_.plant == Plant::kSleepIsHidden;
    if (is_known && proxy.engine().asleep()) proxy.engine().Lose(text);
    proxy.engine().SetAsleep(false);
    proxy.EngineChanged();
  });
}

void World::CheckCommit(const AdapterName& adapter, const PoolName& pool, const VersionKey& version,
                        uint32_t members) {
  constexpr int64_t kOnItsWayMs = 15'000;  // a report that it is there, or a policy
  uint32_t have = 0;
  for (const auto& [member, proxy] : proxies_) {
    // Of one that goes to another pool the leader may not have heard.
    const bool is_of_it = std::ranges::any_of(sessions_, [&](const auto& entry) {
      return entry.second.member == member && entry.second.pool == pool;
    });
    if (is_of_it && proxy->engine().Had(store_.Digest(version), sim_.now() - kOnItsWayMs)) ++have;
  }
  uint32_t needed = std::numeric_limits<uint32_t>::max();
  for (const fleet::AdapterPolicy& policy :
       store_.PoliciesSince(adapter, sim_.now() - kOnItsWayMs)) {
    needed = std::min(needed, policy.min_engines.Of(members));
  }
  if (have >= needed) return;
  sim_.oracle.Violate(19, absl::StrCat(lorry::ToString(version), " was committed on ", have,
                                       " engines, and ", needed, " are needed"));
}

void World::ToStore(uint64_t leader, const sync::SetHolds& effect) {
  if (sim_.Chance(sim_.faults.drop)) return;
  sim_.queue.In(sim_.Latency(sim_.faults.delay_ms), [this, leader, effect] {
    sync::HoldsAcked acked;
    acked.revision = effect.mark.revision;
    if (!store_.SetHolds(effect.mark, effect.versions, acked.missing)) return;
    sim_.oracle.StoreIsTold();
    if (sim_.Chance(sim_.faults.drop)) return;
    sim_.queue.In(sim_.Latency(sim_.faults.delay_ms), [this, leader, acked] {
      if (SimLeader* alive = Find(leader)) alive->Post(acked);
    });
  });
}

}  // namespace lorry::sim
