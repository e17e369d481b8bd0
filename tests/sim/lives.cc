#include "tests/sim/lives.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/sim/draw.h"

namespace lorry::sim {

std::string GroupOf(const fleet::EngineLimits& limits) {
  return absl::StrCat(std::string(fleet::ToString(limits.kind)), "|", limits.rank_limit, "|",
                      limits.slots, "|", limits.batch_slots, "|",
                      absl::StrJoin(limits.engine_modules, ","));
}

void Lives::DiedTrying(const VersionKey& version, const std::string& member) {
  ++tried_[version];
  ++tried_on_[{version, member}];
}

void Lives::DiedOf(const VersionKey& version, const std::string& group) {
  constexpr uint32_t kLives = 2;
  const uint32_t deaths = ++killed_[{version, group}];
  if (!can::kLivesAreCounted || deaths <= kLives * (1 + losses_)) return;
  oracle_.Violate(16,
                  absl::StrCat(ToString(version), " has killed ", deaths, " engines of ", group));
}

void Lives::SaidToKill(const VersionKey& version) {
  constexpr uint32_t kLives = 2;
  const auto tried = tried_.find(version);
  if (!can::kInnocentsAreFree || (tried != tried_.end() && tried->second >= kLives)) return;
  oracle_.Violate(17, absl::StrCat(ToString(version), " is POISONED, and is innocent"));
}

bool Lives::DiedTwice(const VersionKey& version, const std::string& member) const {
  const auto tried = tried_on_.find({version, member});
  return tried != tried_on_.end() && tried->second >= 2;
}

}  // namespace lorry::sim
