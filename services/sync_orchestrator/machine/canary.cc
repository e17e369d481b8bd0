#include "services/sync_orchestrator/machine/canary.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "services/sync_orchestrator/machine/roster.h"

namespace lorry::sync {
namespace {

int64_t PatienceOf(const Core& core, int64_t stage_deadline_ms) {
  return std::max<int64_t>(1, stage_deadline_ms * core.config.canary_percent / 100);
}

}  // namespace

uint32_t DeathsOn(const Core& core, const VersionKey& version, const MemberId& member) {
  const auto poison = core.poison.find(version);
  if (poison == core.poison.end()) return 0;
  const auto deaths = poison->second.deaths.find(member);
  return deaths != poison->second.deaths.end() ? deaths->second : 0;
}

std::string CanaryGroupOf(const Member& member) {
  const fleet::EngineLimits& limits = member.observed->limits;
  return absl::StrCat(std::string(fleet::ToString(limits.kind)), "|",
                      member.observed->engine_version, "|", limits.rank_limit, "|", limits.slots,
                      "|", limits.batch_slots, "|", absl::StrJoin(limits.engine_modules, ","));
}

std::set<MemberId> MembersThatLoad(Core& core, const PoolId& id) {
  Pool& pool = core.pools.at(id);
  std::set<MemberId> loaders;
  if (!pool.sync.has_value()) return loaders;
  const VersionInfo& version = pool.sync->version;
  // By group, in the order in which they try: first where no engine has died of it.
  std::map<std::string, std::vector<std::pair<uint32_t, MemberId>>> groups;
  for (const SyncMember& part : pool.sync->members) {
    const Member& member = core.members.at(part.member);
    if (!part.dropped.empty() || !member.observed.has_value()) continue;
    const std::string group = CanaryGroupOf(member);
    if (IsLoaded(member, core.NameOf(version, member.observed->limits.kind))) {
      pool.canaries_passed.insert(group);
    }
    groups[group].emplace_back(DeathsOn(core, version.key, member.id), member.id);
  }
  const auto info = core.adapters.find(id.adapter);
  const int64_t deadline = info != core.adapters.end() ? info->second.policy.stage_deadline_ms : 1;
  const auto slow = static_cast<size_t>((core.now - pool.sync_began) / PatienceOf(core, deadline));
  for (auto& [group, members] : groups) {
    std::sort(members.begin(), members.end());
    const size_t allowed = pool.canaries_passed.contains(group) ? members.size() : 1 + slow;
    for (size_t i = 0; i < std::min(allowed, members.size()); ++i)
      loaders.insert(members[i].second);
  }
  return loaders;
}

bool EngineDiedOfIt(const Core& core, const Pool& pool) {
  for (const SyncMember& part : pool.sync->members) {
    if (part.dropped.empty() &&
        DeathsOn(core, pool.sync->version.key, part.member) > part.deaths_before) {
      return true;
    }
  }
  return false;
}

Tick NextCanaryAt(const Core& core, const Pool& pool, int64_t stage_deadline_ms) {
  const int64_t patience = PatienceOf(core, stage_deadline_ms);
  return pool.sync_began + ((core.now - pool.sync_began) / patience + 1) * patience;
}

}  // namespace lorry::sync
