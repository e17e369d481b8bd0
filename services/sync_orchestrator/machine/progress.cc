#include "services/sync_orchestrator/machine/progress.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lib/base/a_few.h"
#include "lib/base/strings.h"
#include "services/sync_orchestrator/machine/barrier.h"
#include "services/sync_orchestrator/machine/roster.h"

namespace lorry::sync {
namespace {

// For people: the member's own words where it has said any.
std::string TextOf(const SyncMember& part) {
  return part.words.empty() ? std::string(ToString(part.dropped)) : part.words;
}

}  // namespace

bool HasLoaded(const Sight& sight) {
  return sight.residency != nullptr && sight.residency->state == fleet::ResidencyState::kLoaded;
}

Sights Look(const Core& core, const PoolId& id, const VersionInfo& version) {
  Sights sights;
  for (const auto& [member_id, member] : core.members) {
    if (member.record.pool != id.pool || member.record.dead) continue;
    ++core.work.members;
    Sight& sight = sights.members.emplace_back(&member);
    if (!member.observed.has_value()) continue;
    const fleet::EngineKind kind = member.observed->limits.kind;
    const auto [known, is_new] = sights.names.try_emplace(kind);
    if (is_new) known->second = core.NameIn(version, kind);
    sight.name = &known->second;
    sight.residency = ResidencyOf(member, known->second);
    sight.row = RowOf(member, id.adapter);
  }
  return sights;
}

const Sight* Find(const Sights& sights, const MemberId& member) {
  const auto name = [](const Sight& sight) -> const MemberId& { return sight.member->id; };
  const auto it = std::ranges::lower_bound(sights.members, member, {}, name);
  return it != sights.members.end() && it->member->id == member ? &*it : nullptr;
}

std::vector<MemberProgress> ProgressOf(const Core& core, const PoolId& id,
                                       const VersionInfo& version, const Sights& sights) {
  std::vector<MemberProgress> progress;
  progress.reserve(sights.members.size());
  for (const Sight& sight : sights.members) {
    MemberProgress& its = progress.emplace_back();
    its.member = sight.member->id;
    const MemberStanding standing = StandingOf(core, *sight.member);
    if (standing != MemberStanding::kReady) its.dropped = ToString(standing);
    if (sight.residency != nullptr) {
      its.state = sight.residency->state;
      its.bytes_done = sight.residency->bytes_done;
      its.bytes_total = sight.residency->bytes_total;
    }
    its.active = sight.member->session.has_value() && sight.row != nullptr &&
                 sight.row->mode == fleet::RowMode::kOpen && sight.row->target == *sight.name;
  }
  const auto pool = core.pools.find(id);
  if (pool == core.pools.end() || !pool->second.sync.has_value()) return progress;
  const SyncRecord& sync = *pool->second.sync;
  if (sync.version.key != version.key) return progress;
  for (const SyncMember& part : sync.members) {
    if (part.dropped == Drop::kNone) continue;
    const Sight* sight = Find(sights, part.member);
    if (sight != nullptr)
      progress[static_cast<size_t>(sight - sights.members.data())].dropped = TextOf(part);
  }
  return progress;
}

std::string TroublesOf(const Core& core, const Pool& pool, const Sights& sights) {
  std::vector<std::string> troubles, of_members;
  if (!pool.detail.empty()) troubles.push_back(pool.detail);
  if (pool.barrier.has_value()) troubles.push_back(WhoIsWaitedFor(core, pool));
  for (const SyncMember& part : pool.sync->members) {
    if (part.dropped != Drop::kNone) {
      of_members.push_back(absl::StrCat(part.member.value, " dropped: ", TextOf(part)));
      continue;
    }
    const Sight* sight = Find(sights, part.member);
    if (sight == nullptr || sight->residency == nullptr || HasLoaded(*sight) ||
        sight->residency->reason.empty()) {
      continue;
    }
    const std::string state =
        absl::AsciiStrToLower(ToAbsl(fleet::ToString(sight->residency->state)));
    of_members.push_back(
        absl::StrCat(part.member.value, " ", state, ": ", WordsOf(*sight->residency)));
  }
  if (!of_members.empty()) troubles.push_back(AFew(of_members));
  return absl::StrJoin(troubles, ", ");
}

}  // namespace lorry::sync
