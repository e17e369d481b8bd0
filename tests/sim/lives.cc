#include "tests/sim/lives.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace lorry::sim {

std::string GroupOf(const fleet::EngineLimits& limits) {
  return absl::StrCat(std::string(fleet::ToString(limits.kind)), "|", limits.rank_limit, "|",
                      limits.slots, "|", limits.batch_slots, "|",
                      absl::StrJoin(limits.engine_modules, ","));
}

void Lives::DiedTrying(const VersionKey& version, const BootId& boot) {
  ++tried_[version];
  hung_[version].extract(boot);
}

void Lives::Heard(const std::string& member, const BootId& boot) {
  const auto untold = untold_.find(member);
  if (untold == untold_.end() || untold->second.boot == boot) return;
  if (boot.empty() && untold->second.is_forgotten) return;
  untold_.erase(untold);
}

void Lives::JournalLost(const std::string& member) {
  if (const auto untold = untold_.find(member); untold != untold_.end())
    untold->second.is_forgotten = true;
}

void Lives::TakeBackUntold(const std::string& member) {
  const auto untold = untold_.find(member);
  if (untold == untold_.end()) return;
  --killed_[untold->second.of];
  untold_.erase(untold);
}

void Lives::PutAside(const std::string& member) {
  aside_.insert(member);
  TakeBackUntold(member);
}

void Lives::DiedOf(const VersionKey& version, const std::string& group, const std::string& member,
                   const BootId& boot) {
  constexpr uint32_t kLives = 2;
  if (aside_.contains(member) || away_.contains(member)) return;
  untold_[member] = {{version, group}, boot};
  const uint32_t deaths = ++killed_[{version, group}];
  if (deaths <= kLives * (1 + losses_ + lifted_[version])) return;
  oracle_.Violate(16,
                  absl::StrCat(ToString(version), " has killed ", deaths, " engines of ", group));
}

void Lives::SaidToKill(const VersionKey& version) {
  if (DiedTwice(version)) return;
  oracle_.Violate(17, absl::StrCat(ToString(version), " is POISONED, and is innocent"));
}

void Lives::SaidToBeRefused(const VersionKey& version) {
  constexpr size_t kMembers = 2;
  constexpr uint32_t kOfOne = 3;
  const std::map<std::string, uint32_t>& refused = refused_[version];
  const bool insists =
      std::ranges::any_of(refused, [](const auto& its) { return its.second >= kOfOne; });
  if (misfits_.contains(version) || refused.size() >= kMembers || insists) return;
  oracle_.Violate(17, absl::StrCat(ToString(version), " is REFUSED, and is innocent"));
}

bool Lives::IsAnyToBlame(const AdapterName& adapter) const {
  const auto is_its = [&](const auto& entry) { return entry.first.adapter == adapter; };
  return std::ranges::any_of(tried_, is_its) || std::ranges::any_of(refused_, is_its) ||
         std::ranges::count(misfits_, adapter, &VersionKey::adapter) > 0;
}

bool Lives::DiedTwice(const VersionKey& version) const {
  const auto tried = tried_.find(version);
  return tried != tried_.end() && tried->second >= 2;
}

bool Lives::CostTwo(const VersionKey& version) const {
  const auto tried = tried_.find(version);
  const auto hung = hung_.find(version);
  return (tried != tried_.end() ? tried->second : 0) +
             (hung != hung_.end() ? hung->second.size() : 0) >=
         2;
}

}  // namespace lorry::sim
