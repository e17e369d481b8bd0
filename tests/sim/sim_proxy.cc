#include "tests/sim/sim_proxy.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/sim/narrate.h"
#include "tests/sim/wire.h"

namespace lorry::sim {

using proxy::Outcome;

namespace {

constexpr std::string_view kNames = "name/";
constexpr int64_t kAsksAgainMs = 2'000;  // for an engine's load, while it waits for that to end

bool Locks(const proxy::Record& record) {
  if (!record.value.has_value()) return false;
  const auto* row = std::get_if<proxy::RowRecord>(&*record.value);
  return row != nullptr && row->locked.value != 0;
}

}  // namespace

SimProxy::SimProxy(Sim& sim, MemberId member, PoolName pool, fleet::EngineLimits limits,
                   Hooks hooks)
    : sim_(sim),
      member_(std::move(member)),
      pool_(std::move(pool)),
      hooks_(std::move(hooks)),
      engine_(sim, member_.value, std::move(limits), disk_),
      binder_(sim, member_.value),
      driver_(sim, {.step = [this](const proxy::Event& event) { Step(event); },
                    .write = [this](proxy::Ready& ready) { return Write(ready); },
                    .run = [this](const proxy::Effect& effect) { Do(effect); },
                    .done = [this](proxy::Ready&,
                                   const std::vector<proxy::Event>& batch) { TurnIsOver(batch); },
                    .die = [this] { Kill(sim_.Chance(sim_.faults.journal_loss)); },
                    .crash = [this] { return sim_.faults.proxy_crash; },
                    .tick = proxy::TimePassed{},
                    .who = member_.value}) {
  engine_.OnDeath([this] {
    EngineDied();
    sim_.queue.In(1, [this] {
      for (const auto& door : doors_) door->EngineDied();
      if (IsOneIn("evict " + engine_.boot().value, sim_.faults.evict)) Evict();
    });
    EngineChanged();
  });
}

void SimProxy::Start() {
  if (alive()) return;
  ++life_;
  began_at_ = sim_.now();
  sim_.Trace("proxy up", life_);
  Narrate(sim_, member_.value, "starts");
  proxy::Config config;
  config.member = member_;
  config.pool = pool_;
  config.drain_ms = kDrainMs;
  config.framework_pause_ms = kFrameworkPauseMs;
  config.bindings_limit = SimBinder::kNames;
  if (sim_.plant == Plant::kFrameworkHasNoEnd) config.framework_pause_ms *= 100;
  config.new_journal = JournalId(absl::StrCat(member_.value, "-j", ++journals_));
  const absl::StatusOr<proxy::Records> records =
      ReadBack(journal_, read_, [](const std::string& text) { return proxy::Decode(text); });
  if (!records.ok()) return sim_.oracle.Violate(0, std::string(records.status().message()));
  absl::StatusOr<proxy::Machine> machine = proxy::Machine::Restore(config, *records, sim_.now());
  if (!machine.ok()) return sim_.oracle.Violate(0, std::string(machine.status().message()));
  const auto unloading = records->find("unloading");
  if (unloading != records->end())
    unloads_.insert(std::get<proxy::UnloadingRecord>(unloading->second).name);
  asked_of_.clear();
  unanswered_.clear();
  sees_end_ = false;
  stepped_judged_ = judged_;
  sim_.lives.IsBack(member_.value);
  known_.reset();
  stepped_.clear();
  knows_asleep_ = stepped_asleep_ = was_awake_ = false;
  passed_ = 0;
  framework_.woken = false;
  framework_.wakes_all.clear();
  SimDoor::Hooks hooks;
  // Posted, as everything from another thread is.
  hooks.report = [this, life = life_](const proxy::DoorReport& report) {
    if (life_ == life) Later(1, report);
  };
  hooks.began = [this](const std::string& asked, const door::Resolved& resolved) {
    if (resolved.is_binding) return binder_.Began(asked, resolved.digest);
    if (asked == resolved.key.adapter.value) CheckLatest(resolved);
  };
  doors_.push_back(std::make_unique<SimDoor>(sim_, engine_, std::move(hooks)));
  cancelled_.clear();
  seen_boot_ = BootId();
  blind_until_ = 0;
  last_sent_.reset();
  door_rows_.clear();
  driver_.Start(*std::move(machine));
  journal_id_ = driver_.machine().journal();
  EngineChanged();
  hooks_.dial();
}

void SimProxy::Kill(bool lose_journal) {
  if (alive()) {
    sim_.Trace("proxy down", life_);
    Narrate(sim_, member_.value, lose_journal ? "dies and loses its journal" : "dies");
    sim_.coverage.Add(machine().rows_taken());
    driver_.Stop();
    for (const auto& [op, unsent] : std::exchange(unsent_, {}))
      sim_.lives.DiedTrying(unsent.key, unsent.boot);
    // Their connections are gone, and what they asked for may have been written down.
    for (const auto& [ticket, call] : std::exchange(framework_.open, {})) {
      if (call.is_pause) framework_.may_hold_until = sim_.now() + kFrameworkPauseMs;
    }
    framework_.memory.clear();
    doors_.back()->Died();
    hooks_.hang_up();
  }
  binder_.ProxyDied(lose_journal);
  if (!lose_journal) return;
  sim_.oracle.JournalLost(journal_id_);
  sim_.lives.JournalLost(member_.value);
  for (const VersionKey& key : std::exchange(may_try_, {}))
    sim_.lives.DiedTrying(key, engine_.boot());
  journal_.clear();
  told_apart_.clear();
  unloads_.clear();
  locked_.clear();
  framework_.must_hold_until = framework_.may_hold_until = 0;
  framework_.asleep = BootId();
  engine_.Forgotten();
}

void SimProxy::Evict() {
  Kill(/*lose_journal=*/true);
  disk_.clear();
}

// Between both its requests end, or are ended.
void SimProxy::Drain(int64_t closes_after_ms) {
  constexpr int64_t kEndsAfterMs = 2'000;
  constexpr int64_t kPlantedMs = 15'000;
  if (!alive() || std::exchange(drains_in_, life_) == life_) return;
  Narrate(sim_, member_.value, "drains");
  const bool is_planted = sim_.plant == Plant::kGoodbyeComesFirst;
  if (is_planted) {
    fleet::Observed said = machine().Observe();
    said.leaves = true;
    ++said.sequence;
    hooks_.send(said);
  } else {
    Post(proxy::DoorDrains{});
    doors_.back()->Close();
    sim_.queue.In(closes_after_ms, [this, life = life_] {
      if (life_ != life) return;
      doors_.back()->AbortAll();
      Post(proxy::DoorClosed{});
    });
  }
  sim_.queue.In(is_planted ? kPlantedMs : closes_after_ms + kEndsAfterMs, [this, life = life_] {
    if (life_ == life) Kill(false);
  });
}

void SimProxy::SessionUp() { Post(proxy::SessionUp{}); }
void SimProxy::SessionDown() { Post(proxy::SessionDown{}); }

void SimProxy::Step(const proxy::Event& event) {
  if (sim_.oracle.violated()) return;
  ++sim_.steps;
  stepped_at_ = sim_.now();
  sim_.Trace("proxy", event.index());
  if (sim_.narrates) Narrate(sim_, member_.value, event);
  NoteSleep(event);
  NoteUnsent(event);
  if (const auto* probe = std::get_if<proxy::ProbeDone>(&event)) NoteProbe(*probe);
  const auto* document = std::get_if<proxy::DesiredReceived>(&event);
  if (document == nullptr) {
    driver_.machine().Step(sim_.now(), event);
  } else if (document->desired.term < machine().term()) {
    Refuse(document->desired);
  } else {
    Obey(*document);
  }
  NoteRows();
  NotePauseWaits();
  NoteJudged(event);
}

void SimProxy::Refuse(const fleet::Desired& desired) {
  const fleet::Observed before = machine().Observe();
  proxy::DesiredReceived received{desired};
  if (sim_.plant == Plant::kLowerTermIsObeyed) {
    received.desired.term = machine().term();
    received.desired.revision = Revision(before.revision.value + 1);
  }
  driver_.machine().Step(sim_.now(), received);
  sim_.oracle.StaleDocument(before, machine().Observe());
}

void SimProxy::Obey(const proxy::DesiredReceived& event) {
  const fleet::Desired& desired = event.desired;
  std::erase_if(locked_, [&](const auto& lock) {
    return std::none_of(desired.rows.begin(), desired.rows.end(), [&](const auto& row) {
      const bool shut = row.mode == fleet::RowMode::kHeld || row.mode == fleet::RowMode::kLocked;
      return row.adapter == lock.first && shut;
    });
  });
  NoteHolds(desired);
  // One that was overtaken on its way changes nothing, and nothing is judged by it.
  const bool is_old = desired.term == machine().term() && desired.revision <= machine().revision();
  driver_.machine().Step(sim_.now(), event);
  believed_dead_ = false;
  if (!machine().leaves()) has_left_ = false;
  const bool obeys = machine().term() == desired.term && machine().revision() == desired.revision;
  if (!is_old && obeys) stepped_.push_back(std::make_shared<const fleet::Desired>(desired));
}

// An answer that is no answer (nobody, or too late) leaves it open what the engine does.
void SimProxy::NoteAnswers(const proxy::Event& event) {
  const auto answered = [this](const auto& done) {
    const bool is_last = !std::is_same_v<decltype(done), const proxy::LoadDone&> ||
                         done.outcome != Outcome::kOk;  // it is probed then
    const auto asked = asked_of_.find(done.op);
    unsent_.erase(done.op);
    const bool is_answer = done.outcome != Outcome::kUnknown && done.outcome != Outcome::kBroken;
    if (is_last && is_answer && asked != asked_of_.end()) engine_.Heard(asked->second);
  };
  if (const auto* load = std::get_if<proxy::LoadDone>(&event)) {
    const auto asked = asked_of_.find(load->op);
    if (load->outcome == Outcome::kUnknown && asked != asked_of_.end()) engine_.Hung(asked->second);
    answered(*load);
  }
  if (const auto* probe = std::get_if<proxy::ProbeDone>(&event)) answered(*probe);
  if (const auto* unload = std::get_if<proxy::UnloadDone>(&event)) answered(*unload);
  if (const auto* listed = std::get_if<proxy::Listed>(&event)) engine_.HeardList(listed->paths);
}

void SimProxy::TurnIsOver(const std::vector<proxy::Event>& batch) {
  for (const proxy::Event& event : batch) NoteAnswers(event);
  judged_ = stepped_judged_;
  if (!stepped_.empty()) known_ = stepped_.back();
  stepped_.clear();
  knows_asleep_ = stepped_asleep_;
  was_awake_ = false;
  binder_.TurnIsOver(machine(), journal_);
  CheckWoken();
  CheckSaid();
}

SimDoor::Answer SimProxy::Request(const SimDoor::Wish& wish) {
  if (!alive()) return {{}, "nobody listens"};
  return doors_.back()->Request(wish);
}

void SimProxy::AskForAll(int64_t lasts_ms) {
  if (!alive()) return;
  doors_.back()->ForgetGivenUp();
  const std::vector<proxy::DoorRow> rows = machine().door_table().rows;
  for (const proxy::DoorRow& row : rows) {
    if (row.on_demand) Request({{row.adapter.value}, 1, lasts_ms});
  }
}

std::set<AdapterName> SimProxy::GivenUp() const {
  return alive() ? doors_.back()->given_up() : std::set<AdapterName>();
}

SimDoor::Answer SimProxy::RequestSome(int64_t lasts_ms) {
  if (!alive()) return {{}, "nobody listens"};
  const std::string name = doors_.back()->SomeName();
  return name.empty() ? SimDoor::Answer{{}, "NOT_LOADED"} : Request({{name}, 1, lasts_ms});
}

void SimProxy::UnloadOneThatIsRouted() {
  for (const proxy::DoorRoute& route : machine().door_table().routes) {
    if (engine_.running(route.name) == 0 && doors_.back()->Routes(route.name))
      return Do(proxy::Unload{0, engine_.boot(), route.name, 1'000});
  }
}

void SimProxy::Rot() {
  for (auto& [path, directory] : disk_) {
    // What an engine has read it keeps; what it is about to read was hashed before.
    if (engine_.ListsPath(path) || engine_.WillRead(path)) continue;
    directory.digest = kRotten;
    return;
  }
}

void SimProxy::CannotBeRead() {
  for (auto& [path, directory] : disk_) {
    if (engine_.ListsPath(path) || engine_.WillRead(path)) continue;
    Narrate(sim_, member_.value, path + " cannot be read any more");
    directory.is_readable = false;
    return;
  }
}

std::string SimProxy::Describe() const {
  return absl::StrCat(member_.value, " ", alive() ? machine().Describe() : "down",
                      engine_.up() ? "" : " engine-down",
                      engine_.paused_since().has_value() ? " engine-paused" : "");
}

void SimProxy::Later(int64_t delay, proxy::Event event) {
  sim_.queue.In(delay, [this, life = life_, event = std::move(event)]() mutable {
    if (life_ == life) Post(std::move(event));
  });
}

bool SimProxy::Write(const proxy::Ready& ready) {
  judged_ = stepped_judged_;
  for (const proxy::Record& record : ready.records) {
    if (sim_.plant == Plant::kLockIsNotWritten && Locks(record)) continue;
    const bool is_binding = record.key.starts_with("binding/");
    if (sim_.plant == Plant::kBindingIsNotWritten && is_binding) continue;
    if (sim_.plant == Plant::kSleepIsNotWritten && record.key == "asleep") continue;
    Narrate(sim_, member_.value, record);
    CheckRest(record);
    if (!record.value.has_value()) {
      journal_.erase(record.key);
      if (record.key.starts_with(kNames))
        told_apart_.erase(EngineName(record.key.substr(kNames.size())));
      continue;
    }
    proxy::RecordValue& value = journal_[record.key] = *record.value;
    auto* name = std::get_if<proxy::NameRecord>(&value);
    if (name == nullptr) continue;
    if (sim_.plant == Plant::kApartIsNotWritten) name->apart_ppm = 0;
    NoteTrial(*name);
  }
  return true;
}

void SimProxy::Do(const proxy::Effect& effect) {
  if (sim_.narrates) Narrate(sim_, member_.value, effect);
  std::visit([this](const auto& e) { Do(e); }, effect);
}

void SimProxy::Do(const proxy::Fetch& effect) {
  const std::string path = PathOf(effect.name);
  sim_.queue.In(sim_.Latency(200), [this, life = life_, effect, path] {
    if (life_ != life || !alive()) return;
    if (cancelled_.erase(effect.op) > 0) return Post(proxy::FetchCancelled{effect.op});
    const bool is_binding = !effect.binding.path.empty();
    const SimDirectory foreign = binder_.Has(effect.binding.path);
    if (is_binding && foreign.digest != effect.digest)
      return Post(proxy::FetchFailed{effect.op, "BINDING_LOST", "", true});
    if (!is_binding && !hooks_.stored(effect.key))
      return Post(proxy::FetchFailed{effect.op, "NOT_FOUND", "", true});
    if (sim_.Chance(sim_.faults.fetch_away))
      return Post(proxy::FetchFailed{effect.op, "STORE_UNREACHABLE", "", false, true});
    if (sim_.Chance(sim_.faults.fetch_fails))
      return Post(proxy::FetchFailed{effect.op, "FETCH_FAILED", "", false});
    SimDirectory directory = is_binding ? foreign : hooks_.image(effect.digest);
    if (!is_binding) directory.key = effect.key;
    Put(path, std::move(directory));
    Post(proxy::FetchDone{effect.op, path});
  });
}

void SimProxy::Do(const proxy::CancelFetch& effect) { cancelled_.insert(effect.op); }

void SimProxy::Do(const proxy::HashDirectory& effect) {
  const auto directory = disk_.find(effect.path);
  const bool matches = directory != disk_.end() && directory->second.is_readable &&
                       directory->second.digest == effect.digest;
  Later(sim_.Latency(50), proxy::DirectoryHashed{effect.op, matches});
}

void SimProxy::Do(const proxy::CheckShapes& effect) {
  const auto directory = disk_.find(effect.path);
  const bool is_there = directory != disk_.end() && directory->second.is_readable;
  const bool fits = sim_.plant == Plant::kMisfitIsLoaded ||
                    (is_there && directory->second.hidden_size == effect.base.hidden_size);
  if (is_there && !fits) sim_.lives.Misfits(directory->second.key);
  proxy::ShapesChecked checked{effect.op, is_there ? Outcome::kOk : Outcome::kFailed, fits, ""};
  if (is_there && directory->second.has_reference)
    checked.reference = {{.tokens = {1, 2}, .logprobs = {-1}}};
  Later(1, checked);
}

void SimProxy::Do(const proxy::DeleteDirectory& effect) {
  CheckDelete(effect.name, effect.path);
  if (sim_.Chance(sim_.faults.delete_fails))
    return Later(sim_.Latency(10), proxy::DirectoryDeleted{effect.op, Outcome::kFailed});
  disk_.erase(effect.path);
  Later(sim_.Latency(10), proxy::DirectoryDeleted{effect.op, Outcome::kOk});
}

void SimProxy::Do(const proxy::List& effect) {
  sim_.queue.In(sim_.Latency(10), [this, life = life_, effect] {
    if (life_ != life || !alive()) return;
    if (!Reaches(effect.boot)) return Post(proxy::Listed{effect.op, Outcome::kUnknown, {}});
    Post(proxy::Listed{effect.op, Outcome::kOk, engine_.List()});
  });
}

void SimProxy::Do(const proxy::Load& effect) {
  CheckAwake(effect.name);
  const bool is_binding = effect.name.value.starts_with("lorry.binding-");
  CheckReleased(effect.name.value, is_binding ? kWeights : kMemoryTags);
  unloads_.erase(effect.name);
  asked_of_[effect.op] = effect.name;
  unanswered_.insert(effect.op);
  if (!Reaches(effect.boot)) {
    AskNobody(effect.op, effect.boot, effect.path);
    return Later(1, proxy::LoadDone{effect.op, Outcome::kUnsent, "ENGINE_RESTARTED", ""});
  }
  engine_.Load(effect.name, effect.path,
               [this, life = life_, op = effect.op, boot = effect.boot](Outcome outcome,
                                                                        std::string reason) {
                 if (life_ != life) return;
                 if (outcome == Outcome::kBroken) BrokeOff(boot);
                 std::string words = outcome != Outcome::kOk ? engine_.Words(op) : "";
                 Post(proxy::LoadDone{op, outcome, reason, std::move(words)});
               });
}

void SimProxy::Do(const proxy::Probe& effect) {
  if (effect.question.kind == fleet::ProbeKind::kPresence) {
    told_apart_.erase(effect.name);  // by what it answers nothing is known of it any more
  } else {
    CheckReleased(effect.name.value, kMemoryTags);
  }
  if (effect.question.kind == fleet::ProbeKind::kReference && effect.question.reference.empty())
    sim_.oracle.Violate(2, effect.name.value + " is compared with what nobody has said");
  asked_of_[effect.op] = effect.name;
  if (!Reaches(effect.boot)) {
    AskNobody(effect.op, effect.boot, PathOf(effect.name));
    return Later(1, proxy::ProbeDone{effect.op, Outcome::kUnsent, "ENGINE_RESTARTED", ""});
  }
  engine_.Probe(effect.name, effect.question.kind,
                [this, life = life_, op = effect.op, boot = effect.boot](
                    Outcome outcome, std::string reason, const fleet::ProbeAnswer& answer) {
                  if (life_ != life) return;
                  if (outcome == Outcome::kBroken) BrokeOff(boot);
                  std::string words = outcome != Outcome::kOk ? engine_.Words(op) : "";
                  Post(proxy::ProbeDone{op, outcome, reason, std::move(words), answer});
                });
}

void SimProxy::Do(const proxy::Unload& effect) {
  CheckReleased(effect.name.value, kWeights);
  CheckAwake(effect.name);
  CheckUnload(effect.name);
  unloads_.insert(effect.name);
  asked_of_[effect.op] = effect.name;
  if (!Reaches(effect.boot)) return Later(1, proxy::UnloadDone{effect.op, Outcome::kUnsent});
  engine_.Unload(effect.name, effect.deadline_ms, UnknownOf(effect.name),
                 [this, life = life_, op = effect.op](Outcome outcome, std::string) {
                   if (life_ == life) Post(proxy::UnloadDone{op, outcome});
                 });
}

void SimProxy::Do(const proxy::AskOccupancy& effect) {
  sim_.queue.In(sim_.Latency(10), [this, life = life_, effect] {
    if (life_ != life || !alive()) return;
    const Outcome outcome = Reaches(effect.boot) ? Outcome::kOk : Outcome::kUnknown;
    doors_.back()->Report();
    if (outcome == Outcome::kOk) {
      if (sim_.now() - load_shown_at_ > kAsksAgainMs) waits_since_ = sim_.now();
      engine_.HasShownLoad();
      load_shown_at_ = sim_.now();
    }
    proxy::OccupancySeen seen{effect.op, outcome, engine_.running(), engine_.running_names()};
    if (sim_.plant == Plant::kCountsAreZero) seen = {effect.op, outcome, 0};
    Post(seen);
  });
}

void SimProxy::Do(const proxy::SetDoorTable& effect) {
  Check(effect.table);
  for (const proxy::DoorRow& row : effect.table.rows) door_rows_[row.adapter].mode = row.mode;
  doors_.back()->Take(effect.table);
  if (sim_.plant == Plant::kRoutedIsUnloaded && sim_.Chance(20)) UnloadOneThatIsRouted();
  if (sim_.plant == Plant::kFrameworkIsIgnored && engine_.paused_since().has_value())
    Do(proxy::ResumeEngine{0, engine_.boot()});
}

void SimProxy::Do(const proxy::SendObserved& effect) {
  for (const fleet::ObservedRow& row : effect.observed.rows) {
    if (row.mode != fleet::RowMode::kLocked) continue;
    // A later document of this turn may have opened what an earlier one locked.
    const fleet::Observed now = machine().Observe();
    if (std::find(now.rows.begin(), now.rows.end(), row) != now.rows.end())
      locked_[row.adapter] = row.barrier;
  }
  has_left_ = has_left_ || effect.observed.leaves;
  last_sent_ = effect.observed;
  hooks_.send(effect.observed);
}

}  // namespace lorry::sim
