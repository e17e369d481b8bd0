#include "tests/sim/sim_engine.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/narrate.h"

namespace lorry::sim {

using proxy::Outcome;

namespace {

constexpr int64_t kLoadDeadlineMs = 60'000;  // the driver's own
constexpr int64_t kBreaksAfterMs = 5;

}  // namespace

SimEngine::SimEngine(Sim& sim, std::string id, fleet::EngineLimits limits, SimDisk& disk)
    : sim_(sim), id_(std::move(id)), limits_(std::move(limits)), disk_(disk) {
  slots_ = limits_.slots;
}

void SimEngine::Start() {
  if (up_) return;
  up_ = true;
  boot_ = BootId(absl::StrCat(id_, ".", ++boots_));
  up_since_ = sim_.now();
  limits_.slots = slots_;
  if (slots_ != 0 && sim_.Chance(sim_.faults.other_limits)) ++limits_.slots;
  problem_.reset();
  if (sim_.Chance(sim_.faults.problem)) problem_ = "--enable-lora is missing";
  base_.hidden_size = IsOneIn(boot_.value, sim_.faults.other_base) ? 2 : 1;
  sim_.Trace("engine up", boots_);
  Narrate(sim_, id_, "engine starts");
}

void SimEngine::Kill() {
  if (!up_) return;
  up_ = false;
  sim_.Trace("engine down", boots_);
  Narrate(sim_, id_, "engine dies");
  SeemsDead();
  trying_.clear();
  unheard_.clear();
  for (const auto& [name, loaded] : loaded_) had_[loaded.content.digest] = sim_.now();
  loaded_.clear();
  to_read_.clear();
  loading_.clear();
  excused_.clear();
  known_.clear();
  running_.clear();
  direct_.clear();
  unseen_.clear();
  leaked_.clear();
  locked_by_.reset();
  busy_until_ = 0;
  asleep_ = false;
  released_.clear();
  paused_since_.reset();
  is_frozen_ = false;
  if (on_death_) on_death_();
}

void SimEngine::Forgotten() {
  known_.clear();
  // Nobody knows that a name was leased: who called it by that is cut off, as the drain deadline
  // would do.
  for (const auto& [name, count] : std::exchange(direct_, {})) End(name, boot_, count);
  unseen_.clear();
  Resume();
  released_.clear();
}

// vLLM does nothing where it sleeps already, and wakes as a whole.
void SimEngine::SetAsleep(bool asleep) {
  if (KnowsOneSleep() && asleep_ && !asleep) released_.clear();
  const bool sleeps_already = KnowsOneSleep() && !released_.empty();
  asleep_ = up_ && asleep && !sleeps_already;
}

void SimEngine::TakeBack(const proxy::MemoryTags& tags) {
  if (KnowsOneSleep() && asleep_ && released_.empty()) released_ = kMemoryTags;
  for (const std::string& tag : tags) released_.erase(tag);
  if (KnowsOneSleep() && released_.empty()) asleep_ = false;
}

int64_t SimEngine::Serialised(int64_t takes) {
  busy_until_ = std::max(busy_until_, sim_.now()) + takes;
  return busy_until_ - sim_.now();
}

bool SimEngine::HasFrom(const EngineName& name, const std::string& path) const {
  const auto it = loaded_.find(name);
  return up_ && it != loaded_.end() && it->second.path == path && it->second.asked;
}

bool SimEngine::Had(const Digest& digest, Tick since) const {
  for (const auto& [name, loaded] : loaded_) {
    if (loaded.content.digest == digest) return true;
  }
  const auto it = had_.find(digest);
  return it != had_.end() && it->second >= since;
}

bool SimEngine::ListsPath(const std::string& path) const {
  for (const auto& [name, loaded] : loaded_) {
    if (loaded.path == path) return true;
  }
  return false;
}

bool SimEngine::ListsPathAsKnown(const std::string& path) const {
  return std::any_of(known_.begin(), known_.end(), [&](const EngineName& name) {
    const auto it = loaded_.find(name);
    return it != loaded_.end() && it->second.path == path;
  });
}

std::map<EngineName, std::string> SimEngine::List() {
  std::map<EngineName, std::string> names;
  for (const auto& [name, loaded] : loaded_) names[name] = loaded.path;
  std::erase_if(known_, [&](const EngineName& name) {
    return !loading_.contains(name) && !names.contains(name);
  });
  return names;
}

// 6: room is made before a load, by what the proxy can know. What it cannot know (a name that the
// engine loads again by itself, loads of a lost journal) is the engine's to deal with.
void SimEngine::CheckSlots(const EngineName& name) {
  known_.insert(name);
  if (limits_.slots != 0 && known_.size() > limits_.slots) {
    sim_.oracle.Violate(
        6, absl::StrCat(id_, " was asked to load ", name.value, " without a free slot"));
  }
}

// As a driver asks: one answer, by the deadline at the latest.
SimEngine::Done SimEngine::WithDeadline(Done done) {
  const auto waiting = std::make_shared<Done>(std::move(done));
  Done once = [waiting](Outcome outcome, std::string reason) {
    if (const Done first = std::exchange(*waiting, nullptr)) first(outcome, std::move(reason));
  };
  sim_.queue.In(kLoadDeadlineMs, [once] { once(Outcome::kUnknown, "LOAD_TIMEOUT"); });
  return once;
}

void SimEngine::Load(const EngineName& name, const std::string& path, Done done) {
  const BootId boot = boot_;
  done = WithDeadline(std::move(done));
  const bool lost = sim_.Chance(sim_.faults.answer_lost);
  const int64_t takes =
      sim_.Chance(sim_.faults.engine_slow) ? sim_.Latency(60'000) : sim_.Latency(50);
  if (lost) {
    // The caller gives up; the load goes on, or hangs behind a lock and never ends.
    sim_.queue.In(10'000, [done] { done(Outcome::kUnknown, "LOAD_TIMEOUT"); });
    done = [](Outcome, std::string) {};
  }
  if (BreaksOff(name))
    sim_.queue.In(kBreaksAfterMs, [done] { done(Outcome::kBroken, "ENGINE_CONNECTION_BROKEN"); });
  CheckSlots(name);
  to_read_.insert(path);
  loading_.insert(name);
  if (const auto directory = disk_.find(path); directory != disk_.end())
    unheard_[name] = trying_[name] = directory->second.key;
  sim_.queue.In(Serialised(takes), [this, boot, name, path, done] {
    if (!up_ || boot_ != boot) return done(Outcome::kBroken, "ENGINE_LOST");
    if (const auto it = to_read_.find(path); it != to_read_.end()) to_read_.erase(it);
    if (RegistryLocked()) {
      return sim_.queue.In(10'000, [done] { done(Outcome::kUnknown, "LOAD_TIMEOUT"); });
    }
    if (const auto it = loading_.find(name); it != loading_.end()) loading_.erase(it);
    FinishLoad(name, path, done);
    if (loaded_.contains(name)) return;
    known_.erase(name);
    trying_.erase(name);
  });
}

void SimEngine::FinishLoad(const EngineName& name, const std::string& path, const Done& done) {
  const auto directory = disk_.find(path);
  if (loaded_.contains(name)) return done(Outcome::kFailed, "ALREADY_LOADED");
  if (directory == disk_.end()) return done(Outcome::kFailed, "DIRECTORY_MISSING");
  if (!directory->second.is_readable) return done(Outcome::kFailed, "DIRECTORY_UNREADABLE");
  if (sim_.Chance(sim_.faults.load_fails)) return done(Outcome::kFailed, "LOAD_REFUSED");
  if (Refuses(directory->second)) {
    trying_.erase(name);
    sim_.lives.Refused(directory->second.key, id_);
    return done(Outcome::kRefused, "LOAD_REFUSED");
  }
  if (is_fragile_) {
    Kill();
    return done(Outcome::kBroken, "ENGINE_LOST");
  }
  if (directory->second.harm == Harm::kKillsAtLoad) {
    DieOf(directory->second);
    return done(Outcome::kBroken, "ENGINE_LOST");
  }
  MakeRoom(name);
  CheckFits(name, directory->second);
  loaded_[name] = Loaded{path, directory->second, /*asked=*/true, /*applied=*/WillApply(name)};
  Narrate(sim_, id_, "engine has loaded " + name.value);
  excused_.erase(name);
  sim_.oracle.NameMeans(name, directory->second.digest);
  done(Outcome::kOk, "");
}

void SimEngine::SeemsDead() {
  for (const auto& [name, key] : unheard_) sim_.lives.DiedTrying(key, boot_);
}

void SimEngine::DieOf(const SimDirectory& directory) {
  // Of several that got no answer the first is blamed, whichever it was.
  if (unheard_.size() <= 1) sim_.lives.DiedOf(directory.key, GroupOf(limits_), id_, boot_);
  Kill();
}

bool SimEngine::Refuses(const SimDirectory& directory) const {
  constexpr uint64_t kSome = 400;
  return directory.harm == Harm::kRefusedByAll ||
         (directory.harm == Harm::kRefusedBySome && IsOneIn(id_ + directory.digest.value, kSome));
}

// SGLang drops what was not used for long; vLLM goes on listing what left its cache.
void SimEngine::MakeRoom(const EngineName& name) {
  if (limits_.kind != fleet::EngineKind::kSglang || limits_.slots == 0) return;
  if (loaded_.size() < limits_.slots) return;
  for (const auto& [other, loaded] : loaded_) {
    if (other == name || !CountedIdle(other)) continue;
    Narrate(sim_, id_, "engine drops " + other.value);
    excused_.insert(other);
    had_[loaded.content.digest] = sim_.now();
    loaded_.erase(other);
    return;
  }
}

SimEngine::Applied SimEngine::WillApply(const EngineName& name) const {
  const std::string there = absl::StrCat(boot_.value, name.value);
  if (IsOneIn(there, sim_.faults.ignored)) return Applied::kNotAtAll;
  return IsOneIn("twice" + there, sim_.faults.ignored) ? Applied::kOtherwise : Applied::kAsTrained;
}

bool SimEngine::AnswersWrongly(const EngineName& name) const {
  const auto it = loaded_.find(name);
  if (it == loaded_.end() || !it->second.content.changes) return false;
  const Applied applied = it->second.applied;
  return applied == Applied::kNotAtAll ||
         (applied == Applied::kOtherwise && it->second.content.has_reference);
}

bool SimEngine::CanBeNoticed(const EngineName& name) const {
  const auto it = loaded_.find(name);
  return it != loaded_.end() &&
         (it->second.content.must_differ || it->second.content.has_reference || it->second.is_lost);
}

// 2: no adapter of another model is loaded, as no engine notices.
void SimEngine::CheckFits(const EngineName& name, const SimDirectory& directory) {
  if (directory.hidden_size == base_.hidden_size) return;
  sim_.oracle.Violate(
      2, absl::StrCat(id_, " loads ", name.value, ", which was trained on another base model"));
}

void SimEngine::Probe(const EngineName& name, fleet::ProbeKind kind, Probed done) {
  // That a name is listed is asked of nobody; a token would not come before the engine goes on.
  if (paused_since_.has_value() && kind != fleet::ProbeKind::kPresence)
    sim_.oracle.Violate(
        6, absl::StrCat(id_, " is asked for a token of ", name.value, " under a pause"));
  const BootId boot = boot_;
  if (const auto it = loaded_.find(name); it != loaded_.end())
    unheard_[name] = trying_[name] = it->second.content.key;
  sim_.queue.In(sim_.Latency(50), [this, boot, name, kind, done] {
    if (!up_ || boot_ != boot) return done(Outcome::kBroken, "ENGINE_LOST", {});
    if (const auto it = loaded_.find(name);
        it != loaded_.end() && it->second.content.harm == Harm::kKillsAtUse) {
      DieOf(SimDirectory(it->second.content));
      return done(Outcome::kBroken, "ENGINE_LOST", {});
    }
    trying_.erase(name);
    if (!loaded_.contains(name) || sim_.Chance(sim_.faults.probe_fails)) {
      return done(Outcome::kFailed, "PROBE_FAILED", {});
    }
    if (BreaksOff(name)) return done(Outcome::kBroken, "ENGINE_CONNECTION_BROKEN", {});
    if (loaded_.at(name).applied != Applied::kAsTrained)
      sim_.lives.Refused(loaded_.at(name).content.key, id_);
    done(Outcome::kOk, "", AnswerOf(name, kind));
  });
}

fleet::ProbeAnswer SimEngine::AnswerOf(const EngineName& name, fleet::ProbeKind kind) const {
  const bool refers = kind == fleet::ProbeKind::kReference;
  if (!refers && kind != fleet::ProbeKind::kCompare) return {};
  const Loaded& loaded = loaded_.at(name);
  const double change = loaded.content.changes ? 0.5 : 0;  // of the base model's answers
  // A busy engine's batches make a little noise, in the adapter's answer as in the base model's.
  const double noise = IsOneIn(name.value, 300) ? 0.01 : 0;
  fleet::ProbeAnswer answer;
  const bool differs = loaded.applied != Applied::kNotAtAll || sim_.plant == Plant::kProbeIsBlind;
  answer.compared = {.difference = std::max(differs ? change : 0, noise), .noise = noise};
  const bool is_right = loaded.applied == Applied::kAsTrained || sim_.plant == Plant::kGapIsBlind;
  const double gap = std::max(is_right ? 0 : change, noise);
  if (refers) answer.gap = {.mean = gap, .max = gap, .base = change};
  return answer;
}

bool SimEngine::CountedIdle(const EngineName& name) const {
  return !running_.contains(name) && !leaked_.contains(name);
}

uint32_t SimEngine::unseen(const EngineName& name) const {
  const auto its = unseen_.find(name);
  return its != unseen_.end() ? its->second : 0;
}

void SimEngine::Unload(const EngineName& name, int64_t deadline_ms, uint32_t unknown, Done done) {
  if (up_ && running(name) > unknown) {
    sim_.oracle.Violate(
        6, absl::StrCat(id_, " unloads ", name.value, " with ", running(name), " requests on it"));
  }
  // A framework may wait for the slot of what is to leave; where its pause has ended all requests, and
  // on vLLM, no unload waits for one of them.
  const bool never_waits = has_aborted_ || limits_.kind == fleet::EngineKind::kVllm;
  if (paused_since_.has_value() && !never_waits)
    sim_.oracle.Violate(6, absl::StrCat(id_, " unloads ", name.value, " under a pause"));
  const BootId boot = boot_;
  const bool lost = sim_.Chance(sim_.faults.answer_lost);
  sim_.queue.In(Serialised(sim_.Latency(20)), [this, boot, name, deadline_ms, done, lost] {
    if (!up_ || boot_ != boot) return done(Outcome::kBroken, "");
    if (RegistryLocked())
      return sim_.queue.In(deadline_ms, [done] { done(Outcome::kUnknown, ""); });
    if (limits_.kind == fleet::EngineKind::kSglang && !CountedIdle(name)) {
      locked_by_ = name;  // for ever: the counter never comes back
      if (const auto it = loaded_.find(name); it != loaded_.end()) {
        had_[it->second.content.digest] = sim_.now();
        loaded_.erase(it);
      }
      return sim_.queue.In(deadline_ms, [done] { done(Outcome::kUnknown, ""); });
    }
    FinishUnload(name, lost ? Done([](Outcome, std::string) {}) : done);
    if (lost) sim_.queue.In(deadline_ms, [done] { done(Outcome::kUnknown, ""); });
  });
}

void SimEngine::FinishUnload(const EngineName& name, const Done& done) {
  const auto it = loaded_.find(name);
  trying_.erase(name);
  if (it == loaded_.end()) return done(Outcome::kFailed, "NOT_LOADED");
  const std::string path = it->second.path;
  had_[it->second.content.digest] = sim_.now();
  loaded_.erase(it);
  known_.erase(name);
  Narrate(sim_, id_, "engine has unloaded " + name.value);
  if (limits_.kind == fleet::EngineKind::kSglang && sim_.Chance(sim_.faults.implicit_reload)) {
    sim_.queue.In(sim_.Latency(3'000), [this, boot = boot_, name, path] {
      if (up_ && boot_ == boot) ReloadByItself(name, path);
    });
  }
  done(Outcome::kOk, "");
}

// A late request for a name that was unloaded: SGLang reads it again from where it was.
void SimEngine::ReloadByItself(const EngineName& name, const std::string& path) {
  const auto directory = disk_.find(path);
  if (directory == disk_.end() || loaded_.contains(name) || RegistryLocked()) return;
  if (!directory->second.is_readable) return;
  MakeRoom(name);
  CheckFits(name, directory->second);
  loaded_[name] = Loaded{path, directory->second, /*asked=*/false, /*applied=*/WillApply(name)};
  Narrate(sim_, id_, "engine loads again by itself " + name.value);
}

bool SimEngine::Begin(const EngineName& name, const Digest& digest, const BootId& boot,
                      uint32_t children) {
  if (!up_) return false;
  if (name.empty()) {
    running_[name] += children;
    return true;
  }
  const auto it = loaded_.find(name);
  if (it == loaded_.end()) {
    if (boot_ == boot && !excused_.contains(name)) {
      sim_.oracle.Violate(2, absl::StrCat("a request reached ", id_, " under ", name.value,
                                          ", which is not loaded"));
    }
    if (boot_ != boot && sim_.plant == Plant::kBootIsHidden) {
      sim_.oracle.Violate(
          2, absl::StrCat("a request reached another boot of ", id_, " under ", name.value));
    }
    return false;
  }
  if (it->second.content.digest != digest) {
    sim_.oracle.Violate(
        2, absl::StrCat(name.value, " on ", id_, " answers with other bytes than announced"));
  }
  running_[name] += children;
  return true;
}

void SimEngine::AskDirectly(const EngineName& name, int64_t lasts_ms) {
  if (!up_ || !loaded_.contains(name)) return;
  ++running_[name];
  ++direct_[name];
  ++unseen_[name];
  sim_.queue.In(lasts_ms, [this, name, boot = boot_, shown = shown_] {
    const auto its = direct_.find(name);
    if (boot_ != boot || its == direct_.end()) return;
    if (shown == shown_) --unseen_[name];
    if (--its->second == 0) direct_.erase(its);
    End(name, boot, 1);
  });
}

void SimEngine::End(const EngineName& name, const BootId& boot, uint32_t children) {
  if (!up_ || boot_ != boot) return;
  const auto it = running_.find(name);
  if (it != running_.end() && (it->second -= children) == 0) running_.erase(it);
  if (limits_.kind == fleet::EngineKind::kSglang && sim_.Chance(sim_.faults.counter_leaks))
    ++leaked_[name];
}

uint64_t SimEngine::running() const {
  constexpr uint64_t kOthers = 3;
  uint64_t all = IsOneIn(boot_.value, 300) ? kOthers : 0;
  for (const auto& [name, count] : running_) all += count;
  return all;
}

std::optional<std::set<EngineName>> SimEngine::running_names() const {
  if (limits_.kind != fleet::EngineKind::kVllm) return std::nullopt;
  std::set<EngineName> names;
  for (const auto& [name, count] : running_) names.insert(name);
  return names;
}

uint32_t SimEngine::running(const EngineName& name) const {
  const auto it = running_.find(name);
  return it != running_.end() ? it->second : 0;
}

void SimEngine::FillUp() {
  for (uint32_t i = 1; loaded_.size() < limits_.slots; ++i) {
    const EngineName name(absl::StrCat("left-v", i, "-0123456789ab"));
    SimDirectory content{.digest = Digest{absl::StrCat("left-", i)}};
    loaded_[name] = Loaded{absl::StrCat("/left/", i), std::move(content)};
  }
}

std::string SimEngine::Words(uint64_t call) const {
  if (!IsOneIn(absl::StrCat("words ", boot_.value, call), sim_.faults.words)) return "";
  constexpr size_t kTimes = 1'000;
  std::string words = absl::StrCat(call);  // so that what is cut begins anywhere in a character
  for (size_t i = 0; i < kTimes; ++i) words += "\u00e9";
  return words;
}

void SimEngine::Vanish() {
  if (!up_ || loaded_.empty() || RegistryLocked()) return;
  auto it = loaded_.begin();
  std::advance(it, sim_.prng.Below(loaded_.size()));
  if (direct_.contains(it->first)) return;  // engines evict nothing that is at work
  excused_.insert(it->first);
  had_[it->second.content.digest] = sim_.now();
  loaded_.erase(it);
}

void SimEngine::Lose(const std::string& text) {
  if (!up_ || RegistryLocked()) return;
  for (auto it = loaded_.begin(); it != loaded_.end();) {
    const std::string its = absl::StrCat(text, it->first.value);
    if (IsOneIn("base " + its, 400)) {
      it->second.applied = Applied::kNotAtAll;
      it->second.is_lost = true;
    }
    const bool is_gone = IsOneIn("gone " + its, 300) && !direct_.contains(it->first) &&
                         !running_.contains(it->first);
    if (is_gone) {
      excused_.insert(it->first);
      had_[it->second.content.digest] = sim_.now();
    }
    it = is_gone ? loaded_.erase(it) : std::next(it);
  }
}

uint32_t SimEngine::RunningForAdapters() const {
  uint32_t all = 0;
  for (const auto& [name, count] : running_) {
    const auto direct = direct_.find(name);
    if (!name.empty()) all += count - (direct != direct_.end() ? direct->second : 0);
  }
  return all;
}

}  // namespace lorry::sim
