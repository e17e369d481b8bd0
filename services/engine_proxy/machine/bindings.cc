#include "services/engine_proxy/machine/bindings.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "lib/base/first_after.h"
#include "services/engine_proxy/machine/binding_name.h"
#include "services/engine_proxy/machine/demand.h"
#include "services/engine_proxy/machine/residency.h"
#include "services/engine_proxy/machine/slots.h"
#include "services/engine_proxy/machine/unload.h"

namespace lorry::proxy {
namespace {

// Real names have about 30 bytes.
constexpr size_t kNameBytesMax = 256;

std::string KeyOf(const std::string& client_name) { return absl::StrCat("binding/", client_name); }

fleet::WantedVersion WantedOf(const Core& core, const BindingRecord& record) {
  fleet::WantedVersion wanted;
  wanted.name = record.name;
  wanted.key = BindingKey();
  wanted.digest = record.digest;
  wanted.traits = record.traits;
  wanted.render = record.render;
  wanted.on_demand = true;
  wanted.eviction_rank = static_cast<uint32_t>(record.order);
  const auto allowed = core.bindings.deaths_allowed.find(record.name);
  if (allowed != core.bindings.deaths_allowed.end()) wanted.deaths_allowed = allowed->second;
  return wanted;
}

void Want(Core& core, const BindingRecord& record) {
  const auto [it, is_new] =
      core.bindings.wanted.emplace(record.name, Bound{WantedOf(core, record), record.path});
  // Two names may stand for the same bytes: then the newer one decides when these make room, and
  // from which directory they are read again.
  if (!is_new && it->second.wanted.eviction_rank < record.order)
    it->second = {WantedOf(core, record), record.path};
}

void NoteWanted(Core& core) {
  core.bindings.wanted.clear();
  for (const auto& [client_name, record] : core.bindings.by_name) Want(core, record);
  for (const PendingBind& call : core.bindings.calls) {
    if (call.made.has_value()) Want(core, *call.made);
  }
  std::erase_if(core.bindings.deaths_allowed,
                [&](const auto& entry) { return !core.IsBound(entry.first); });
  MeetDesired(core);
}

AnswerBinding& Answer(Core& core, const BindAsked& asked, BindAnswer answer,
                      std::string reason = "", std::string detail = "") {
  AnswerBinding said{.ticket = asked.ticket, .answer = answer};
  said.reason = std::move(reason);
  said.detail = std::move(detail);
  said.client_name = asked.client_name;
  said.path = asked.path;
  return core.bindings.answers.emplace_back(std::move(said));
}

// Why nobody may bind or unbind that name; empty: everybody may.
std::string WhyNoName(const std::string& name) {
  if (name.empty() || name.size() > kNameBytesMax)
    return absl::StrCat("a name has 1 to ", kNameBytesMax, " bytes");
  const bool is_plain = std::ranges::all_of(
      name, [](char c) { return c > ' ' && c <= '~' && c != '"' && c != '\\' && c != ','; });
  if (!is_plain)
    return "a name is made of visible ASCII characters, without quotes, commas or backslashes";
  if (fleet::KeyOfEngineName(EngineName(name)).has_value())
    return "names that end in -v, a number and 12 hexadecimal digits are Lorry's own; choose "
           "another";
  return "";
}

// The binding of that name stands on other bytes that requests use.
bool IsInUse(const Core& core, const PendingBind& call) {
  const auto it = core.bindings.by_name.find(call.asked.client_name);
  if (it == core.bindings.by_name.end() || it->second.name == call.made->name) return false;
  return !call.asked.in_place && core.InFlight(it->second.name) > 0;
}

// Frameworks that count their names up and unload none would fill memory without an end: the oldest
// that nobody uses is forgotten, but never `just_bound`, whose caller is told that it can be used.
void KeepWithinLimit(Core& core, const std::string& just_bound) {
  auto& by_name = core.bindings.by_name;
  while (by_name.size() > core.config.bindings_limit) {
    auto oldest = by_name.end();
    for (auto it = by_name.begin(); it != by_name.end(); ++it) {
      if (it->first == just_bound || core.InFlight(it->second.name) > 0) continue;
      if (oldest == by_name.end() || it->second.order < oldest->second.order) oldest = it;
    }
    if (oldest == by_name.end()) return;
    core.Erase(KeyOf(oldest->first));
    by_name.erase(oldest);
  }
}

void Commit(Core& core, const PendingBind& call) {
  core.bindings.by_name[call.asked.client_name] = *call.made;
  core.Save(KeyOf(call.asked.client_name), *call.made);
  core.bindings.kept_until[call.made->name] = core.now + core.config.yield_ms;
  KeepWithinLimit(core, call.asked.client_name);
  Answer(core, call.asked, BindAnswer::kDone).order = call.made->order;
}

// What came of a call; none: it has not ended.
struct End {
  BindAnswer answer = BindAnswer::kRefused;
  std::string reason, detail;
};

// What a call comes to when its directory has just been read.
std::optional<End> EndOfRead(const Core& core, const BindingRead& read) {
  if (read.outcome != Outcome::kOk) {
    return End{read.missing ? BindAnswer::kNoDirectory : BindAnswer::kRefused, read.reason,
               read.detail};
  }
  // The name has twelve digits of a hash, so that other bytes may have the same one: these are
  // refused.
  if (core.residencies.at(read.name).digest != read.digest)
    return End{BindAnswer::kRefused, "NAME_RESERVED", "another adapter's name is the same"};
  const std::string why = fleet::WhyNotServable(core.limits, read.traits);
  if (!why.empty()) return End{BindAnswer::kRefused, "ADAPTER_UNSERVABLE", why};
  return std::nullopt;
}

// Engines take the calls on a name one after another, so that the newest decides: whoever called
// before it must not take the name back by being slower. Directories are read in the calls' order.
std::optional<End> EndByLater(const Core& core, const PendingBind& call) {
  const auto bound = core.bindings.by_name.find(call.asked.client_name);
  if (bound == core.bindings.by_name.end() || bound->second.order < call.made->order)
    return std::nullopt;
  return End{BindAnswer::kRefused, "BIND_SUPERSEDED", "a later call has bound this name"};
}

// What a call comes to once its directory was read and the adapter has an engine name.
std::optional<End> EndOf(const Core& core, const PendingBind& call) {
  if (std::optional<End> end = EndByLater(core, call); end.has_value()) return end;
  const Residency* residency = core.Find(call.made->name);
  if (residency == nullptr) return std::nullopt;
  if (residency->Is<at::Loaded>() && !IsLeaving(core, *residency)) {
    if (IsInUse(core, call)) return End{BindAnswer::kAlreadyLoaded, "BINDING_IN_USE", ""};
    return End{BindAnswer::kDone, "", ""};
  }
  if (const auto* failed = std::get_if<at::Failed>(&residency->phase))
    return End{BindAnswer::kRefused, failed->mishap.reason, failed->mishap.detail};
  if (core.IsWedged()) return End{BindAnswer::kRefused, "ENGINE_WEDGED", WhyAway(core, *residency)};
  if (std::string why = WhyUnservable(core, *residency); !why.empty())
    return End{BindAnswer::kRefused, "ADAPTER_UNSERVABLE", std::move(why)};
  if (!core.IsWantedLoaded(*residency)) {
    return End{BindAnswer::kRefused, "POISONED",
               "an engine here ended while it loaded or tried this adapter; look at its weights"};
  }
  const auto* fetched = std::get_if<at::Fetched>(&residency->phase);
  if (fetched != nullptr && fetched->no_slot.has_value()) {
    return End{BindAnswer::kRefused, "NO_SLOT",
               absl::StrCat(*fetched->no_slot, "; held by ", WhoHoldsSlots(core))};
  }
  return std::nullopt;
}

std::optional<End> LateEnd(const Core& core, const PendingBind& call) {
  if (core.now < call.until) return std::nullopt;
  const Residency* residency = call.made.has_value() ? core.Find(call.made->name) : nullptr;
  const std::string why =
      residency != nullptr ? WhyAway(core, *residency) : "its directory is still read";
  return End{BindAnswer::kRefused, "BIND_TIMEOUT",
             absl::StrCat("it could not be used within ", core.config.bind_call_ms, " ms: ", why)};
}

// Whether a directory may be read now: one at a time, and not while a binding's directory is
// written or removed, as that may be the one that the bytes read belong to.
bool MayRead(const Core& core) {
  if (core.bindings.reading != 0 || core.limits.kind == fleet::EngineKind::kUnknown) return false;
  return std::ranges::none_of(core.residencies, [](const auto& entry) {
    const Residency& residency = entry.second;
    return IsBinding(residency) && residency.IsAny<at::Fetching, at::Cancelling, at::Deleting>();
  });
}

void ReadNext(Core& core) {
  if (!MayRead(core)) return;
  const auto next = std::ranges::find_if(
      core.bindings.calls, [](const PendingBind& call) { return !call.made.has_value(); });
  if (next == core.bindings.calls.end()) return;
  core.bindings.reading = next->op = core.NewOp();
  ReadBinding read{.op = next->op,
                   .path = next->asked.path,
                   .ticket = next->asked.as_tensors ? next->asked.ticket : 0,
                   .kind = core.limits.kind,
                   .base = {}};
  if (!core.base_unchecked) read.base = core.base_model;
  core.effects.push_back(std::move(read));
}

// True: some call has ended.
bool EndCalls(Core& core) {
  bool changed = false;
  auto& calls = core.bindings.calls;
  for (auto call = calls.begin(); call != calls.end();) {
    std::optional<End> end = call->made.has_value() ? EndOf(core, *call) : std::nullopt;
    if (!end.has_value()) end = LateEnd(core, *call);
    if (!end.has_value()) {
      ++call;
      continue;
    }
    if (end->answer == BindAnswer::kDone) {
      Commit(core, *call);
    } else {
      Answer(core, call->asked, end->answer, std::move(end->reason), std::move(end->detail));
    }
    call = calls.erase(call);
    changed = true;
  }
  return changed;
}

}  // namespace

void RestoreBinding(Core& core, const std::string& client_name, const BindingRecord& record) {
  core.bindings.by_name[client_name] = record;
  core.bindings.last_order = std::max(core.bindings.last_order, record.order);
  Want(core, record);
}

void HandleBind(Core& core, const BindAsked& event) {
  if (const std::string why = WhyNoName(event.client_name); !why.empty()) {
    Answer(core, event, BindAnswer::kRefused, "NAME_RESERVED", why);
    return;
  }
  if (core.problem.has_value()) {
    // "REASON: what to do", and waiting does not mend it.
    std::pair<std::string, std::string> why =
        absl::StrSplit(*core.problem, absl::MaxSplits(": ", 1));
    Answer(core, event, BindAnswer::kRefused, std::move(why.first), std::move(why.second));
    return;
  }
  PendingBind call;
  call.asked = event;
  call.until = core.now + core.config.bind_call_ms;
  core.bindings.calls.push_back(std::move(call));
}

// Answers at once. The adapter is unloaded as soon as that is possible, which nobody waits for.
void HandleUnbind(Core& core, const UnbindAsked& event) {
  const BindAsked asked{.ticket = event.ticket, .client_name = event.client_name, .path = ""};
  if (const std::string why = WhyNoName(event.client_name); !why.empty()) {
    Answer(core, asked, BindAnswer::kRefused, "NAME_RESERVED", why);
    return;
  }
  const size_t ended = std::erase_if(core.bindings.calls, [&](const PendingBind& call) {
    if (call.asked.client_name != event.client_name) return false;
    Answer(core, call.asked, BindAnswer::kRefused, "BIND_SUPERSEDED",
           "a later call has unloaded this name");
    return true;
  });
  if (core.bindings.by_name.erase(event.client_name) == 0 && ended == 0) {
    Answer(core, asked, BindAnswer::kNotBound, "UNKNOWN_ADAPTER");
    return;
  }
  core.Erase(KeyOf(event.client_name));
  NoteWanted(core);
  Answer(core, asked, BindAnswer::kDone);
}

void HandleBindingRead(Core& core, const BindingRead& event) {
  if (event.op == 0 || event.op != core.bindings.reading) return;
  core.bindings.reading = 0;
  if (event.outcome == Outcome::kOk) {
    Residency& residency = core.residencies[event.name];
    // Where the residency was made because the engine lists the name, its bytes are not known
    // before.
    if (residency.digest.value.empty()) {
      residency.name = event.name;
      residency.key = BindingKey();
      residency.digest = event.digest;
      residency.traits = event.traits;
      residency.render = event.render;
    }
    // Not only ABSENT: the engine may have loaded the name again by itself, from a directory that is
    // gone, and have been asked to unload it; or its copy was lost, and could not be read again.
    if (!event.path.empty() && !residency.directory.has_value()) {
      residency.directory = Directory{.path = event.path, .proven = true};
      residency.loaded_on = BootId();
      if (!Move(core, residency, ResidencyEvent::kFetched)) core.SaveName(residency);
    }
  }
  const auto call = std::ranges::find_if(
      core.bindings.calls, [&](const PendingBind& pending) { return pending.op == event.op; });
  if (call == core.bindings.calls.end()) return;
  const BindAsked asked = call->asked;
  std::optional<End> end = EndOfRead(core, event);
  if (!end.has_value()) {
    call->made = BindingRecord{event.name,   event.digest,     event.traits,
                               event.render, call->asked.path, ++core.bindings.last_order};
    call->op = 0;
    if (IsInUse(core, *call)) end = End{BindAnswer::kAlreadyLoaded, "BINDING_IN_USE", ""};
  }
  if (end.has_value()) {
    core.bindings.calls.erase(call);
    Answer(core, asked, end->answer, std::move(end->reason), std::move(end->detail));
    return NoteWanted(core);
  }
  // A caller that asks for what an engine has died of once gets one more try, and no third one.
  const auto killer = core.killers.find(event.name);
  if (killer != core.killers.end())
    core.bindings.deaths_allowed[event.name] = std::min<uint32_t>(killer->second.deaths, 1);
  NoteWanted(core);
  Residency& residency = core.residencies.at(event.name);
  residency.evicting = false;
  if (residency.Is<at::Failed>()) residency.retry_at = core.now;
}

bool IsJustBound(const Core& core, const EngineName& name) {
  const auto kept = core.bindings.kept_until.find(name);
  return kept != core.bindings.kept_until.end() && core.now < kept->second && core.IsBound(name);
}

bool AdvanceBindings(Core& core) {
  std::erase_if(core.bindings.kept_until,
                [&](const auto& kept) { return core.now >= kept.second; });
  bool changed = false;
  while (EndCalls(core)) changed = true;  // one that is served may end others before it
  if (changed) NoteWanted(core);
  ReadNext(core);
  return changed;
}

void AnswerBindCalls(Core& core) {
  for (AnswerBinding& answer : std::exchange(core.bindings.answers, {})) {
    for (const auto& [client_name, record] : core.bindings.by_name)
      answer.bound.emplace(client_name, record.path);
    core.effects.push_back(std::move(answer));
  }
}

std::optional<Tick> BindingsWakeAt(const Core& core) {
  FirstAfter wake(core.now);
  for (const PendingBind& call : core.bindings.calls) wake.At(call.until);
  for (const auto& [name, until] : core.bindings.kept_until) wake.At(until);
  return wake.first();
}

}  // namespace lorry::proxy
