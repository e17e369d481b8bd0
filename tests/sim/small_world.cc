#include "tests/sim/small_world.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace lorry::sim {
namespace {

using proxy::Outcome;

constexpr Tick kOver = 120'000;
constexpr int64_t kStageDeadlineMs = 10'000;
constexpr int64_t kBarrierDeadlineMs = 10'000;
constexpr int64_t kLateMs = 30'000;
const AdapterName kMath("math");
const PoolName kRollout("rollout");

sync::VersionInfo Version(uint64_t number) {
  sync::VersionInfo info;
  info.key = {kMath, RunId(1), VersionNumber(number)};
  info.digest = Digest{absl::StrCat("bytes-", number)};
  info.traits.rank_max = 8;
  return info;
}

size_t HashOf(std::string_view text) { return std::hash<std::string_view>()(text); }
BootId BootOf(size_t member, uint64_t boot) { return BootId(absl::StrCat("e", member, ".", boot)); }

}  // namespace

SmallWorld::SmallWorld(fleet::SyncMode mode) : over_(now_ + kOver) {
  StartLeader();
  for (size_t member = 0; member < kMembers; ++member) StartProxy(member);
  Publish(1);
  crashes_ = {[this] { CrashLeader(); }, [this] { CrashProxy(0); }, [this] { CrashEngine(0); }};
  if (mode == fleet::SyncMode::kBarrier) {
    while (Choices() > 0 && !IsSettled()) Choose(0);
    policy_.mode = mode;
    policy_.min_engines = {false, 1};
    policy_.stage_deadline_ms = kStageDeadlineMs;
    policy_.barrier_deadline_ms = kBarrierDeadlineMs;
    Tell(sync::AdapterSet{{kMath, policy_, RunId(1)}}, kFromStore);
    crashes_.emplace_back([this] { Delay(kToProxy + 1); });
    crashes_.emplace_back([this] { Delay(kAnswers + 1); });
    over_ = now_ + kOver;
  }
  Publish(2);
  crashed_.assign(crashes_.size(), false);
}

void SmallWorld::Publish(uint64_t number) {
  published_.push_back(Version(number));
  Tell(sync::VersionStored{published_.back()}, kFromStore);
}

void SmallWorld::Delay(size_t channel) { late_until_[channel] = now_ + kLateMs; }

void SmallWorld::Send(size_t channel, size_t hash, std::function<void()> deliver) {
  channels_[channel].push_back({++numbers_, hash, std::move(deliver)});
}

void SmallWorld::Answer(size_t member, proxy::Event event) {
  Send(kAnswers + member, event.index(),
       [this, member, event = std::move(event)] { Step(member, event); });
}

void SmallWorld::Tell(const sync::Event& event, size_t channel) {
  Send(channel, event.index(), [this, event] { Step(event); });
}

// --- processes

void SmallWorld::StartLeader() {
  leader_ = *sync::Machine::Restore(sync::Config(), records_, now_);
  Take();
  sync::StoreListed listed;
  // What its dead predecessor had not heard yet it reads too.
  listed.adapters = {{kMath, policy_, RunId(1)}};
  listed.versions = published_;
  Tell(listed, kFromStore);
}

void SmallWorld::StartProxy(size_t member) {
  Member& its = members_[member];
  proxy::Config config;
  config.member = MemberId(absl::StrCat("e", member));
  config.new_journal = JournalId(absl::StrCat("j", member));
  its.machine = *proxy::Machine::Restore(config, its.journal, now_);
  Take(member);
  SeeEngine(member);
  Attach(member);
}

void SmallWorld::Attach(size_t member) {
  Member& its = members_[member];
  if (its.session != 0) Tell(sync::SessionLost{its.session}, kToLeader + member);
  its.session = ++sessions_;
  Tell(sync::SessionOpened{its.session, MemberId(absl::StrCat("e", member)), kRollout,
                           its.machine->Observe()},
       kToLeader + member);
  Answer(member, proxy::SessionUp{});
}

void SmallWorld::SeeEngine(size_t member) {
  proxy::EngineSeen seen;
  seen.boot = BootOf(member, members_[member].boot);
  seen.limits.kind = member == 0 ? fleet::EngineKind::kSglang : fleet::EngineKind::kVllm;
  seen.limits.slots = 3;
  seen.version = absl::StrCat(1);
  seen.base_unchecked = true;
  Answer(member, seen);
}

void SmallWorld::CrashLeader() {
  for (size_t channel = 0; channel < kAnswers; ++channel) channels_[channel].clear();
  StartLeader();
  for (size_t member = 0; member < kMembers; ++member) {
    members_[member].session = 0;  // the new leader knows none of them
    Answer(member, proxy::SessionDown{});
    Attach(member);
  }
}

void SmallWorld::CrashProxy(size_t member) {
  for (const size_t channel : {kToProxy, kAnswers, kDoors}) channels_[channel + member].clear();
  StartProxy(member);
}

void SmallWorld::CrashEngine(size_t member) {
  Member& its = members_[member];
  its.registry.clear();
  ++its.boot;
  channels_[kAnswers + member].clear();
  Answer(member, proxy::EngineLost{true});
  // Its session lives on.
  Answer(member, proxy::SessionUp{});
  SeeEngine(member);
}

// --- machines

void SmallWorld::Step(const sync::Event& event) {
  ++steps_;
  leader_->Step(now_, event);
  Take();
  for (size_t member = 0; member < kMembers; ++member) CheckBarrier(member);
}

void SmallWorld::Step(size_t member, const proxy::Event& event) {
  ++steps_;
  members_[member].machine->Step(now_, event);
  Take(member);
  CheckBarrier(member);
}

void SmallWorld::Take() {
  sync::Ready ready = leader_->TakeReady();
  for (const sync::Record& record : ready.records) {
    if (record.value.has_value()) {
      records_[record.key] = *record.value;
    } else {
      records_.erase(record.key);
    }
    oracle_.Durable(leader_->term(), record);
  }
  for (const sync::Effect& effect : ready.effects) {
    if (const auto* set = std::get_if<sync::SetHolds>(&effect))
      Tell(sync::HoldsAcked{set->mark.revision, {}}, kFromStore);
    const auto* desired = std::get_if<sync::SetDesired>(&effect);
    if (desired == nullptr) continue;
    for (size_t member = 0; member < kMembers; ++member) {
      if (members_[member].session != desired->session) continue;
      Send(kToProxy + member, HashOf(absl::StrCat(desired->revision.value)),
           [this, member, document = desired->Whole()] {
             Step(member, proxy::DesiredReceived{document});
           });
    }
  }
  leader_wake_ = ready.wake_at;
}

void SmallWorld::Take(size_t member) {
  Member& its = members_[member];
  proxy::Ready ready = its.machine->TakeReady();
  for (const proxy::Record& record : ready.records) {
    if (record.value.has_value()) {
      its.journal[record.key] = *record.value;
    } else {
      its.journal.erase(record.key);
    }
  }
  its.wake = ready.wake_at;
  for (const proxy::Effect& effect : ready.effects) Do(member, effect);
}

void SmallWorld::Do(size_t member, const proxy::Effect& effect) {
  Member& its = members_[member];
  const auto path = [](const EngineName& name) { return absl::StrCat("/", name.value); };
  const auto done = [&](const proxy::Event& event) { Answer(member, event); };
  if (const auto* e = std::get_if<proxy::Fetch>(&effect)) {
    its.disk.insert(path(e->name));
    done(proxy::FetchDone{e->op, path(e->name)});
  } else if (const auto* e = std::get_if<proxy::HashDirectory>(&effect)) {
    done(proxy::DirectoryHashed{e->op, its.disk.contains(e->path)});
  } else if (const auto* e = std::get_if<proxy::CheckShapes>(&effect)) {
    done(proxy::ShapesChecked{e->op, Outcome::kOk, true, ""});
  } else if (const auto* e = std::get_if<proxy::DeleteDirectory>(&effect)) {
    its.disk.erase(e->path);
    done(proxy::DirectoryDeleted{e->op, Outcome::kOk});
  } else if (const auto* e = std::get_if<proxy::List>(&effect)) {
    done(proxy::Listed{e->op, Outcome::kOk, its.registry});
  } else if (const auto* e = std::get_if<proxy::Load>(&effect)) {
    its.registry[e->name] = e->path;
    if (its.registry.size() > 3) oracle_.Violate(6, "a load without a free slot");
    done(proxy::LoadDone{e->op, Outcome::kOk, "", ""});
  } else if (const auto* e = std::get_if<proxy::Probe>(&effect)) {
    done(proxy::ProbeDone{e->op, Outcome::kOk, "", "", {fleet::ProbeComparison{0.5, 0}, {}}});
  } else if (const auto* e = std::get_if<proxy::Unload>(&effect)) {
    its.registry.erase(e->name);
    done(proxy::UnloadDone{e->op, Outcome::kOk});
  } else if (const auto* e = std::get_if<proxy::AskOccupancy>(&effect)) {
    done(proxy::OccupancySeen{e->op, Outcome::kOk, 0});
  } else if (const auto* e = std::get_if<proxy::SetDoorTable>(&effect)) {
    Check(member, e->table);
    Send(kDoors + member, HashOf("report"),
         [this, member, report = proxy::DoorReport{e->table.revision, {}}] {
           Step(member, report);
         });
  } else if (const auto* e = std::get_if<proxy::SendObserved>(&effect)) {
    Tell(sync::MemberObserved{its.session, e->observed}, kToLeader + member);
  }
}

void SmallWorld::Check(size_t member, const proxy::DoorTable& table) {
  const Member& its = members_[member];
  for (const proxy::DoorRoute& route : table.routes) {
    if (table.boot == BootOf(member, its.boot) && !its.registry.contains(route.name))
      oracle_.Violate(2, absl::StrCat(route.name.value, " is routed, and is not loaded"));
  }
  for (const proxy::DoorRow& row : table.rows) {
    if (row.mode != fleet::RowMode::kOpen) continue;
    const proxy::DoorRoute* route = table.FindRoute(row.target);
    if (route == nullptr) {
      oracle_.Violate(2, "a row opens a version that is not loaded");
    } else if (row.epoch.value != 0) {
      oracle_.RowOpened(its.machine->journal(), its.machine->term().incarnation, row.adapter,
                        kRollout, row.epoch, route->key);
    }
  }
}

// 5: a door that is open admits a request at any moment.
void SmallWorld::CheckBarrier(size_t member) {
  const proxy::Machine& machine = *members_[member].machine;
  const proxy::DoorRow* row = machine.door_table().FindRow(kMath);
  if (row != nullptr && row->mode == fleet::RowMode::kOpen)
    oracle_.BeganOnLatest(machine.term().incarnation, kMath, kRollout, row->epoch);
}

// --- what happens next

bool SmallWorld::IsIdle() const { return Heads().empty(); }

bool SmallWorld::IsSettled() const {
  return std::all_of(members_.begin(), members_.end(), [this](const Member& its) {
    const proxy::DoorTable& table = its.machine->door_table();
    const proxy::DoorRow* row = table.FindRow(kMath);
    const proxy::DoorRoute* route = row != nullptr ? table.FindRoute(row->target) : nullptr;
    return route != nullptr && row->mode == fleet::RowMode::kOpen &&
           route->key == published_.back().key;
  });
}

void SmallWorld::PassTime() {
  std::optional<Tick> next = leader_wake_;
  for (const Member& its : members_) {
    if (its.wake.has_value() && (!next.has_value() || *its.wake < *next)) next = its.wake;
  }
  for (size_t channel = 0; channel < kChannels; ++channel) {
    if (channels_[channel].empty() || !IsLate(channel)) continue;
    next = std::min(next.value_or(over_), late_until_[channel]);
  }
  now_ = std::max(now_ + 1, next.value_or(over_));
  if (now_ >= over_) return oracle_.Violate(13, "the newest version is not served");
  if (leader_wake_.has_value() && *leader_wake_ <= now_) Step(sync::TimePassed{});
  for (size_t member = 0; member < kMembers; ++member) {
    const std::optional<Tick> wake = members_[member].wake;
    if (wake.has_value() && *wake <= now_) Step(member, proxy::TimePassed{});
  }
}

// Channels in which something waits, the longest waiting first.
std::vector<size_t> SmallWorld::Heads() const {
  std::vector<size_t> heads;
  for (size_t channel = 0; channel < kChannels; ++channel) {
    if (Waits(channel)) heads.push_back(channel);
  }
  std::sort(heads.begin(), heads.end(), [this](size_t a, size_t b) {
    return channels_[a].front().number < channels_[b].front().number;
  });
  return heads;
}

size_t SmallWorld::Choices() {
  while (!oracle_.violated() && IsIdle() && !IsSettled()) PassTime();
  if (oracle_.violated()) return 0;
  const auto crashes = static_cast<size_t>(std::count(crashed_.begin(), crashed_.end(), false));
  const size_t heads = Heads().size();
  // Settled: what is left to happen are crashes, and the first choice is that nothing does.
  return heads == 0 ? (crashes == 0 ? 0 : 1 + crashes) : heads + crashes;
}

void SmallWorld::Choose(size_t choice) {
  const std::vector<size_t> heads = Heads();
  if (choice < heads.size()) {
    const Pending next = std::move(channels_[heads[choice]].front());
    channels_[heads[choice]].pop_front();
    return next.deliver();
  }
  size_t crash = choice - std::max<size_t>(heads.size(), 1);
  if (heads.empty() && choice == 0) {
    crashed_.assign(crashed_.size(), true);  // nothing happens any more
    return;
  }
  for (size_t i = 0; i < crashes_.size(); ++i) {
    if (crashed_[i] || crash-- != 0) continue;
    crashed_[i] = true;
    return crashes_[i]();
  }
}

uint64_t SmallWorld::Hash() const {
  std::string text = leader_->Describe();
  for (const auto& [key, value] : records_) absl::StrAppend(&text, key, sync::Encode(value));
  for (const Member& its : members_) {
    absl::StrAppend(&text, its.machine->Describe(), its.boot);
    for (const auto& [name, path] : its.registry) absl::StrAppend(&text, name.value, ",");
    for (const auto& [key, value] : its.journal) absl::StrAppend(&text, key, proxy::Encode(value));
  }
  for (const auto& channel : channels_) {
    absl::StrAppend(&text, "|");
    for (const Pending& pending : channel) absl::StrAppend(&text, pending.hash, " ");
  }
  for (size_t channel = 0; channel < kChannels; ++channel)
    absl::StrAppend(&text, IsLate(channel) ? "late" : "-");
  for (const bool crashed : crashed_) absl::StrAppend(&text, crashed ? "x" : "-");
  return HashOf(text);
}

}  // namespace lorry::sim
