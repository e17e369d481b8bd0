// What a simulated proxy is judged by.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "lib/base/strings.h"
#include "tests/sim/sim_proxy.h"
#include "tests/sim/written.h"

namespace lorry::sim {
namespace {

// But for numbers that change all the time, and are told every few seconds.
fleet::Observed WithoutCounts(fleet::Observed observed) {
  observed.sequence = 0;
  for (fleet::ObservedResidency& residency : observed.residencies) {
    residency.in_flight = std::min(residency.in_flight, uint32_t{1});
    residency.bytes_done = residency.bytes_total = 0;
  }
  return observed;
}

}  // namespace

std::string SimProxy::WhyNotWritten() const {
  return driver_.IsAtRest() ? sim::WhyNotWritten(machine(), journal_) : "";
}

// 13: whoever is to decide by what a member has and why is told of each change at once.
void SimProxy::CheckSaid() {
  constexpr uint64_t kTurnsACheck = 32;
  if (!last_sent_.has_value() || ++turns_ % kTurnsACheck != 0) return;
  if (WithoutCounts(machine().Observe()) != WithoutCounts(*last_sent_))
    sim_.oracle.Violate(13, member_.value + " does not tell what has changed");
}

bool SimProxy::AlwaysSaid(const std::function<bool(const fleet::Desired&)>& says) const {
  return known_ != nullptr && says(*known_) &&
         std::all_of(stepped_.begin(), stepped_.end(),
                     [&](const Document& document) { return says(*document); });
}

const EngineName* SimProxy::LeasedName(const VersionKey& key) const {
  if (!alive() || known_ == nullptr || !Reaches(machine().door_table().boot)) return nullptr;
  for (const fleet::WantedVersion& wanted : known_->wanted) {
    if (wanted.key != key || !wanted.leased || !engine_.HasFrom(wanted.name, PathOf(wanted.name)))
      continue;
    const bool always = AlwaysSaid([&](const fleet::Desired& desired) {
      return std::ranges::count(desired.wanted, wanted) > 0;
    });
    if (always) return &wanted.name;
  }
  return nullptr;
}

// A request by the bare name begins, asked just now or released by a row that was HELD.
void SimProxy::CheckLatest(const door::Resolved& resolved) {
  const AdapterName& adapter = resolved.key.adapter;
  CheckShut(adapter);
  CheckFresh(adapter, resolved.key);
  if (has_left_ && known_ == nullptr && stepped_.empty())
    sim_.oracle.Violate(5, absl::StrCat(member_.value, " left, and opens a row before it is told"));
  for (const fleet::ObservedRow& row : machine().Observe().rows) {
    if (row.adapter == adapter && !believed_dead_)
      sim_.oracle.BeganOnLatest(row.incarnation, adapter, pool_, resolved.epoch);
  }
}

// §5: by the last decision that the door knows.
void SimProxy::CheckFresh(const AdapterName& adapter, const VersionKey& served) {
  // A table of this turn may release what one of the turn before held, by other rules.
  const bool is_changed =
      !stepped_.empty() && known_ != nullptr && stepped_.back()->rules != known_->rules;
  if (known_ == nullptr || is_changed) return;
  const fleet::Desired& known = *known_;
  for (const fleet::DesiredRow& row : known.rows) {
    if (row.adapter != adapter || row.mode != fleet::RowMode::kOpen) continue;
    for (const fleet::DoorRules& rules : known.rules) {
      if (rules.adapter != adapter || rules.stale == fleet::StaleMode::kTag) continue;
      sim_.oracle.ServedLatest(known.term.incarnation, pool_, row.epoch, served,
                               rules.max_staleness);
    }
  }
}

// 6: what may not leave, of all that the proxy was told.
void SimProxy::CheckUnload(const EngineName& name) {
  const auto violate = [&](std::string_view why) {
    sim_.oracle.Violate(6, absl::StrCat(member_.value, " unloads ", name.value, ", ", ToAbsl(why)));
  };
  if (doors_.back()->Routes(name)) violate("which its door routes to");
  if (!engine_.HasFrom(name, PathOf(name))) return;
  // It may have lost what it had.
  if (failed_probe_.contains(name)) return;
  // It was asked for before, and may yet be done.
  if (unloads_.contains(name)) return;
  const bool must = AlwaysSaid([&](const fleet::Desired& desired) {
    return std::any_of(desired.wanted.begin(), desired.wanted.end(), [&](const auto& wanted) {
      const bool holds = !wanted.on_this_boot || desired.boot == engine_.boot();
      return wanted.name == name && wanted.must && wanted.load && holds;
    });
  });
  if (must) violate("which must be loaded");
  // What may be loaded leaves where room is needed, and an engine without a limit has room.
  const bool may = AlwaysSaid([&](const fleet::Desired& desired) {
    return std::ranges::any_of(desired.wanted, [&](const fleet::WantedVersion& wanted) {
      return wanted.name == name && wanted.load && !wanted.on_this_boot;
    });
  });
  if (may && engine_.limits().slots == 0) violate("for which it has room");
}

// Whoever has a name leased may call it without the door at any moment: after the engine has told its
// load, for as long as the machine believes that, and while a proxy that has decided is stalled.
// And where what the engine has of it must go, they are cut off once that was waited for long enough.
uint32_t SimProxy::UnknownOf(const EngineName& name) const {
  constexpr int64_t kBelievedMs = 1'000;  // it asks again then
  if (stepped_at_ - waits_since_ >= kDrainMs - kBelievedMs) return engine_.direct(name);
  return stepped_at_ - load_shown_at_ <= kBelievedMs ? engine_.unseen(name) : 0;
}

// 10: who may still open what is there.
void SimProxy::CheckDelete(const EngineName& name, const std::string& path) {
  const auto violate = [&](std::string_view why) {
    sim_.oracle.Violate(10, absl::StrCat(path, " is deleted ", ToAbsl(why)));
  };
  if (engine_.up() && engine_.ListsPathAsKnown(path)) violate("while the engine lists it");
  if (engine_.up() && engine_.WillRead(path)) violate("while the engine is about to read it");
  // Other bytes than it should have, or none: nobody may use it, and it is fetched again.
  const auto directory = disk_.find(path);
  if (directory == disk_.end() || directory->second.digest == kRotten ||
      !directory->second.is_readable) {
    return;
  }
  for (const fleet::ObservedRow& row : machine().Observe().rows) {
    if (row.target == name) violate("while a row stands on it");
  }
  for (const auto& [key, record] : journal_) {
    const auto* binding = std::get_if<proxy::BindingRecord>(&record);
    if (binding != nullptr && binding->name == name) violate("while it is bound");
  }
  const bool is_wanted = AlwaysSaid([&](const fleet::Desired& desired) {
    return std::any_of(desired.wanted.begin(), desired.wanted.end(),
                       [&](const auto& wanted) { return wanted.name == name; });
  });
  if (is_wanted) violate("while it is wanted");
}

// 5: from the moment that a row says it is HELD or LOCKED it admits nothing.
void SimProxy::CheckShut(const AdapterName& adapter) {
  for (const fleet::ObservedRow& row : machine().Observe().rows) {
    if (row.adapter != adapter) continue;
    if (row.mode != fleet::RowMode::kHeld && row.mode != fleet::RowMode::kLocked) continue;
    sim_.oracle.Violate(5, absl::StrCat(member_.value, " admits a request where it says ",
                                        std::string(fleet::ToString(row.mode))));
  }
  if (locked_.contains(adapter))
    sim_.oracle.Violate(5, absl::StrCat(member_.value, " forgot that it is LOCKED"));
}

void SimProxy::CheckAwake(const EngineName& name) {
  if (knows_asleep_ && !was_awake_ && engine_.asleep() && !engine_.has_weights())
    sim_.oracle.Violate(6, absl::StrCat(name.value, " is moved on an engine that sleeps"));
}

// 2: where something else answers, that was noticed, or is said not to be known.
void SimProxy::CheckProven(const fleet::Observed& observed, const proxy::DoorRoute& route) {
  const auto its = std::find_if(observed.residencies.begin(), observed.residencies.end(),
                                [&](const auto& r) { return r.name == route.name; });
  if (its == observed.residencies.end() || its->state != fleet::ResidencyState::kLoaded) return;
  const bool is_unproven = its->reason == "UNPROVEN";
  if (!is_unproven && differed_.contains(route.name)) told_apart_.insert(route.name);
  if (!engine_.AnswersWrongly(route.name)) return;
  const bool can_be_noticed = engine_.CanBeNoticed(route.name) || told_apart_.contains(route.name);
  if (is_unproven && !can_be_noticed) return;
  sim_.oracle.Violate(2, absl::StrCat(route.name.value, " is routed, and answers unlike itself"));
}

// Whether this turn stepped no document of another incarnation: a table before it speaks of the
// earlier one's epochs.
bool SimProxy::OneIncarnation() const {
  return std::all_of(stepped_.begin(), stepped_.end(), [&](const Document& document) {
    return known_ != nullptr && document->term.incarnation == known_->term.incarnation;
  });
}

void SimProxy::Check(const proxy::DoorTable& table) {
  // While it sleeps nothing is admitted; that the engine lists a name is all that can be known then.
  if (!table.asleep && !table.routes.empty() && Reaches(machine().door_table().boot)) {
    const fleet::Observed observed = machine().Observe();
    for (const proxy::DoorRoute& route : table.routes) CheckProven(observed, route);
  }
  for (const proxy::DoorRow& row : table.rows) {
    if (row.mode != fleet::RowMode::kOpen) continue;
    const proxy::DoorRoute* route = table.FindRoute(row.target);
    if (route == nullptr && row.on_demand) continue;  // requests wait
    if (route == nullptr) {
      sim_.oracle.Violate(
          2, absl::StrCat("row ", row.adapter.value, " opens a version that is not loaded"));
      continue;
    }
    // A row that stands on an earlier incarnation's decision says so by epoch 0.
    if (row.epoch.value == 0 || !OneIncarnation()) continue;
    sim_.oracle.RowOpened(machine().journal(), machine().term().incarnation, row.adapter, pool_,
                          row.epoch, route->key);
  }
}

}  // namespace lorry::sim
