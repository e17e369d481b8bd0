#include "tests/sim/narrate.h"

#include <cstdio>

#include "absl/strings/str_cat.h"

namespace lorry::sim {
namespace {

// In the order of the variants.
constexpr std::string_view kProxyEvents[] = {
    "SessionUp",   "SessionDown",    "DesiredReceived",  "EngineSeen",      "EngineLost",
    "Listed",      "LoadDone",       "ProbeDone",        "UnloadDone",      "OccupancySeen",
    "PauseDone",   "ResumeDone",     "PassDone",         "FetchProgress",   "FetchDone",
    "FetchFailed", "FetchCancelled", "DirectoryDeleted", "DirectoryHashed", "ShapesChecked",
    "DoorReport",  "DoorDrains",     "DoorClosed",       "CallMade",        "CallLeft",
    "BindAsked",   "UnbindAsked",    "BindingRead",      "TimePassed"};
constexpr std::string_view kProxyEffects[] = {
    "Fetch",       "CancelFetch",   "HashDirectory", "CheckShapes",  "DeleteDirectory",
    "List",        "Load",          "Probe",         "Unload",       "AskOccupancy",
    "PauseEngine", "ResumeEngine",  "SetDoorTable",  "SendObserved", "AnswerCall",
    "ReadBinding", "AnswerBinding", "PassCall"};
constexpr std::string_view kSyncEvents[] = {
    "StoreListed", "AdapterSet",  "AdapterDeleted", "VersionStored", "VersionDeleted",
    "AliasSet",    "HoldsAcked",  "SessionOpened",  "SessionLost",   "MemberObserved",
    "LeaseAsked",  "OverrideSet", "MemberMarked",   "FleetAdopted",  "VerdictLifted",
    "WatchOpened", "WatchClosed", "TimePassed"};
constexpr std::string_view kSyncEffects[] = {"SetDesired", "EndSession", "SetHolds", "NotifyWatch",
                                             "FootingChanged"};

static_assert(std::size(kProxyEvents) == std::variant_size_v<proxy::Event>);
static_assert(std::size(kProxyEffects) == std::variant_size_v<proxy::Effect>);
static_assert(std::size(kSyncEvents) == std::variant_size_v<sync::Event>);
static_assert(std::size(kSyncEffects) == std::variant_size_v<sync::Effect>);

std::string Tell(const std::map<EngineName, std::string>& names) {
  std::string text;
  for (const auto& [name, path] : names) absl::StrAppend(&text, " ", name.value);
  return text;
}

std::string Tell(const fleet::Desired& desired) {
  std::string text =
      absl::StrCat(" term=", lorry::ToString(desired.term), " rev=", desired.revision.value);
  for (const fleet::DesiredRow& row : desired.rows) {
    absl::StrAppend(&text, " ", row.adapter.value, ":", std::string(fleet::ToString(row.mode)), "(",
                    row.epoch.value, ")=", row.target.value);
  }
  for (const fleet::WantedVersion& wanted : desired.wanted) {
    absl::StrAppend(&text, wanted.must ? " MUST " : " MAY ", wanted.name.value,
                    wanted.load ? "" : " fetch-only");
  }
  return text;
}

// Whatever of these an event or effect has, in this order.
template <typename T>
std::string Fields(const T& it) {
  std::string text;
  if constexpr (requires { it.op; }) absl::StrAppend(&text, " #", it.op);
  if constexpr (requires { it.ticket; }) absl::StrAppend(&text, " ticket=", it.ticket);
  if constexpr (requires { std::holds_alternative<proxy::PauseCall>(it.call); }) {
    constexpr std::string_view kCalls[] = {" pause", " continue", " release", " wake", " weights"};
    static_assert(std::size(kCalls) == std::variant_size_v<proxy::FrameworkCall>);
    text += kCalls[it.call.index()];
  }
  if constexpr (requires { it.session; }) absl::StrAppend(&text, " session=", it.session);
  if constexpr (requires { it.member.value; }) absl::StrAppend(&text, " ", it.member.value);
  if constexpr (requires { it.boot.value; }) absl::StrAppend(&text, " boot=", it.boot.value);
  if constexpr (requires { it.name.value; }) absl::StrAppend(&text, " ", it.name.value);
  if constexpr (requires { it.outcome; }) {
    constexpr std::string_view kOutcomes[] = {"ok",     "refused", "failed",
                                              "unsent", "broken",  "unknown"};
    static_assert(std::size(kOutcomes) == static_cast<size_t>(proxy::Outcome::kUnknown) + 1);
    absl::StrAppend(&text, " ", std::string(kOutcomes[static_cast<int>(it.outcome)]));
  }
  if constexpr (requires { it.reason.size(); }) absl::StrAppend(&text, " ", it.reason);
  if constexpr (requires { it.asleep; }) text += it.asleep.value_or(false) ? " asleep" : "";
  if constexpr (requires { it.info.policy; })
    text += it.info.policy.mode == fleet::SyncMode::kBarrier ? " BARRIER" : " ROLLING";
  if constexpr (requires { it.paths; }) text += Tell(it.paths);
  if constexpr (requires { it.desired; }) text += Tell(it.desired);
  if constexpr (requires { it.Whole(); }) text += Tell(it.Whole());
  if constexpr (requires { it.version.key; })
    absl::StrAppend(&text, " ", lorry::ToString(it.version.key));
  return text;
}

template <typename Variant>
void Line(const Sim& sim, const std::string& who, std::string_view verb, const Variant& it) {
  if (!sim.narrates) return;
  Narrate(
      sim, who,
      absl::StrCat(std::string(verb),
                   std::visit([](const auto& alternative) { return Fields(alternative); }, it)));
}

template <typename Value>
void Written(const Sim& sim, const std::string& who, const std::string& key, const Value& value) {
  if (!sim.narrates) return;
  Narrate(sim, who + " =", absl::StrCat(key, " ", value.has_value() ? Encode(*value) : "deleted"));
}

}  // namespace

void Narrate(const Sim& sim, const std::string& who, const std::string& what) {
  if (!sim.narrates) return;
  std::printf("%8lld %s %s\n", static_cast<long long>(sim.now()), who.c_str(), what.c_str());
}

void Narrate(const Sim& sim, const std::string& who, const proxy::Event& event) {
  Line(sim, who + " <", kProxyEvents[event.index()], event);
}

void Narrate(const Sim& sim, const std::string& who, const proxy::Effect& effect) {
  Line(sim, who + " >", kProxyEffects[effect.index()], effect);
}

void Narrate(const Sim& sim, const std::string& who, const sync::Event& event) {
  Line(sim, who + " <", kSyncEvents[event.index()], event);
}

void Narrate(const Sim& sim, const std::string& who, const sync::Effect& effect) {
  Line(sim, who + " >", kSyncEffects[effect.index()], effect);
}

void Narrate(const Sim& sim, const std::string& who, const proxy::Record& record) {
  Written(sim, who, record.key, record.value);
}

void Narrate(const Sim& sim, const std::string& who, const sync::Record& record) {
  Written(sim, who, record.key, record.value);
}

}  // namespace lorry::sim
