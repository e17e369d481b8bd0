#include "services/sync_orchestrator/machine/desired.h"

#include <algorithm>
#include <set>
#include <utility>

#include "services/sync_orchestrator/machine/roster.h"
#include "services/sync_orchestrator/machine/wanted.h"

namespace lorry::sync {
namespace {

// --- parts

using SharedPart = std::shared_ptr<const DesiredPart>;

SharedPart Take(Core& core, Pool& pool, DesiredPart part) {
  for (Pool::SharedPart& known : pool.parts) {
    if (*known.part != part) continue;
    ++known.members;
    return known.part;
  }
  core.changed.holds = true;
  pool.parts.push_back({std::make_shared<const DesiredPart>(std::move(part)), 1});
  return pool.parts.back().part;
}

void GiveBack(Core& core, Pool& pool, const SharedPart& part) {
  const auto it = std::ranges::find(pool.parts, part, &Pool::SharedPart::part);
  if (--it->members > 0) return;
  core.changed.holds = true;
  pool.parts.erase(it);
}

void Put(Core& core, Member& member, AdapterName adapter, std::optional<DesiredPart> wanted) {
  Document& document = member.desired;
  const auto it = document.parts.find(adapter);
  const SharedPart before = it != document.parts.end() ? it->second : nullptr;
  const bool had = before != nullptr;
  if (had == wanted.has_value() && (!had || *before == *wanted)) return;
  Pool& pool = core.PoolOf({adapter, document.pool});
  if (wanted.has_value()) {
    document.parts[adapter] = Take(core, pool, *std::move(wanted));
  } else {
    document.parts.erase(it);
  }
  if (had) GiveBack(core, pool, before);
  core.unsent.insert(member.id);
}

void Refresh(Core& core, Member& member, const AdapterName& adapter) {
  const AdapterInfo* info = core.FindAdapter(adapter);
  const bool is_here = info != nullptr && info->policy.pools.contains(member.record.pool);
  Put(core, member, adapter, is_here ? std::optional(PartOf(core, member, *info)) : std::nullopt);
}

void RefreshAll(Core& core, Member& member) {
  Document& document = member.desired;
  std::set<AdapterName> gone;
  for (const auto& [adapter, part] : document.parts) gone.insert(adapter);
  if (document.pool != member.record.pool) {
    for (const AdapterName& adapter : gone) Put(core, member, adapter, std::nullopt);
    document.pool = member.record.pool;
  }
  for (const auto& [adapter, info] : core.adapters) {
    Refresh(core, member, adapter);
    gone.erase(adapter);
  }
  for (const AdapterName& adapter : gone) Refresh(core, member, adapter);
}

Document::Head HeadOf(const Core& core, const Member& member) {
  return {core.meta.term, member.record.journal, member.observed->boot};
}

// --- sending

void Add(const DesiredPart& part, fleet::Desired& desired) {
  desired.rows.push_back(part.row);
  desired.rules.push_back(part.rules);
  desired.aliases.insert(desired.aliases.end(), part.aliases.begin(), part.aliases.end());
  desired.wanted.insert(desired.wanted.end(), part.wanted.begin(), part.wanted.end());
}

// What MUST be there stays, however much it is.
void LeaveOutTheOldest(std::vector<fleet::WantedVersion>& wanted) {
  using fleet::WantedVersion;
  std::ranges::stable_sort(wanted, {}, [](const WantedVersion& version) {
    return std::pair(!version.must, version.lag);
  });
  const auto rest = std::ranges::find(wanted.begin() + ptrdiff_t{kWantedMax}, wanted.end(), false,
                                      &WantedVersion::must);
  wanted.erase(rest, wanted.end());
  std::ranges::sort(wanted, {}, &WantedVersion::name);
}

SetDesired MessageTo(const Member& member) {
  const Document& document = member.desired;
  SetDesired message{*member.session,        member.id,           document.head->term,
                     document.head->journal, document.head->boot, document.revision};
  message.parts.reserve(document.parts.size());
  for (const auto& [adapter, part] : document.parts) message.parts.push_back(part);
  return message;
}

void Say(Core& core, const Member& member) {
  core.unsaid.insert(member.id);
  core.resend.Set(member.id, core.now + core.config.resend_ms);
}

void SayNew(Core& core, Member& member) {
  Document& document = member.desired;
  document.head = HeadOf(core, member);
  document.revision = Revision(document.revision.value + 1);
  Say(core, member);
}

bool IsServed(const Member& member) { return member.session.has_value() && member.served; }

}  // namespace

fleet::Desired SetDesired::Whole() const {
  fleet::Desired desired;
  desired.term = term;
  desired.journal = journal;
  desired.boot = boot;
  desired.revision = revision;
  for (const auto& part : parts) Add(*part, desired);
  auto& wanted = desired.wanted;
  std::ranges::sort(wanted, {}, &fleet::WantedVersion::name);
  if (wanted.size() > kWantedMax) LeaveOutTheOldest(wanted);
  return desired;
}

size_t CountWanted(const SetDesired& message) {
  size_t count = 0;
  for (const auto& part : message.parts) count += part->wanted.size();
  return count;
}

bool IsAnswered(const Core& core, const Member& member) {
  return member.observed->term == core.meta.term &&
         member.observed->revision == member.desired.revision && !core.unsent.contains(member.id);
}

void RefreshDocuments(Core& core) {
  const Changes::Documents changes = std::exchange(core.changed.documents, {});
  if (changes.empty()) return;
  const auto each = [&](Member& member) {
    if (!IsServed(member)) return;  // all of it is looked at when it is
    if (changes.all || changes.members.contains(member.id)) {
      RefreshAll(core, member);
      if (member.desired.head != HeadOf(core, member)) core.unsent.insert(member.id);
      return;
    }
    for (const AdapterName& adapter : changes.adapters) Refresh(core, member, adapter);
    for (const PoolId& id : changes.pools) {
      if (id.pool == member.record.pool) Refresh(core, member, id.adapter);
    }
    const auto parts = changes.parts.find(member.id);
    if (parts == changes.parts.end()) return;
    for (const AdapterName& adapter : parts->second) Refresh(core, member, adapter);
  };
  if (changes.all || !changes.adapters.empty() || !changes.pools.empty()) {
    for (auto& [id, member] : core.members) each(member);
    return;
  }
  std::set<MemberId> members = changes.members;
  for (const auto& [id, adapters] : changes.parts) members.insert(id);
  for (const MemberId& id : members) {
    const auto it = core.members.find(id);
    if (it != core.members.end()) each(it->second);
  }
}

void AdvanceDesired(Core& core) {
  if (core.footing != Footing::kSettled) return;
  RefreshDocuments(core);
  for (const MemberId& id : std::exchange(core.unsent, {})) {
    const auto it = core.members.find(id);
    if (it != core.members.end() && IsServed(it->second)) SayNew(core, it->second);
  }
  for (const MemberId& id : core.resend.TakeDue(core.now)) {
    const auto it = core.members.find(id);
    if (it == core.members.end() || !IsServed(it->second)) continue;
    if (!IsAnswered(core, it->second)) Say(core, it->second);
  }
}

void DropDocument(Core& core, Member& member) {
  while (!member.desired.parts.empty())
    Put(core, member, member.desired.parts.begin()->first, std::nullopt);
}

void DropFromDocuments(Core& core, const AdapterName& adapter) {
  for (auto& [id, member] : core.members) {
    if (!member.desired.parts.contains(adapter)) continue;
    Put(core, member, adapter, std::nullopt);
    // A member that is away has answered a document that still had the adapter: the new number has
    // it told when it is back.
    if (!IsServed(member)) member.desired.revision = Revision(member.desired.revision.value + 1);
  }
}

void SendDocuments(Core& core) {
  const std::set<MemberId> unsaid = std::exchange(core.unsaid, {});
  // Several steps may share one Ready: one of them may have found that records are lost.
  if (core.footing != Footing::kSettled) return;
  for (const MemberId& id : unsaid) {
    const auto it = core.members.find(id);
    if (it == core.members.end() || !IsServed(it->second)) continue;
    const Member& member = it->second;
    if (member.desired.head.has_value()) core.effects.emplace_back(MessageTo(member));
  }
}

void NoteAnswer(Core& core, const Member& member) {
  if (!IsAnswered(core, member)) return;
  core.resend.Clear(member.id);
  core.changed.Answer(member.id);
}

bool IsCurrent(const Member& member) {
  const Document& document = member.desired;
  if (!member.session.has_value() || !document.head.has_value()) return false;
  const fleet::Observed& observed = *member.observed;
  if (observed.term != document.head->term || observed.revision != document.revision) return false;
  return std::all_of(document.parts.begin(), document.parts.end(), [&](const auto& entry) {
    const DesiredPart& part = *entry.second;
    const fleet::ObservedRow* has = RowOf(member, part.row.adapter);
    if (has == nullptr || has->mode != part.row.mode) return false;
    const bool is_open = part.row.mode == fleet::RowMode::kOpen;
    if (is_open && (has->epoch != part.row.epoch || has->target != part.row.target)) return false;
    return std::all_of(part.wanted.begin(), part.wanted.end(), [&](const auto& wanted) {
      return !wanted.must || !wanted.load || IsLoaded(member, wanted.name);
    });
  });
}

}  // namespace lorry::sync
