#include "tests/sim/written.h"

#include <algorithm>
#include <optional>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "services/sync_orchestrator/machine/keys.h"

namespace lorry::sim {
namespace {

template <typename Value, typename Records>
const Value* Find(const Records& records, const std::string& key) {
  const auto it = records.find(key);
  return it != records.end() ? std::get_if<Value>(&it->second) : nullptr;
}

template <typename Records>
size_t CountBelow(const Records& records, std::string_view prefix) {
  return static_cast<size_t>(std::ranges::count_if(
      records, [&](const auto& record) { return record.first.starts_with(prefix); }));
}

template <typename Value, typename Records>
bool IsWritten(const Records& records, const std::string& key, const std::optional<Value>& said) {
  const Value* written = Find<Value>(records, key);
  return said.has_value() ? written != nullptr && *written == *said : written == nullptr;
}

std::string WhyPoolIsNot(const sync::PoolStatus& said, const sync::Records& records) {
  const std::string name = absl::StrCat(said.adapter.value, "/", said.pool.value);
  static const sync::PoolRecord kNothing;
  const auto* pool = Find<sync::PoolRecord>(records, sync::PoolKey(said.adapter, said.pool).text);
  if (pool == nullptr) pool = &kNothing;
  if (pool->history != said.history) return name + ": what it has decided";
  if (pool->pending != said.pending) return name + ": what waits";
  if (pool->override_to != said.override_to) return name + ": its pin";
  if (!IsWritten(records, sync::SyncKey(said.adapter, said.pool).text, said.sync))
    return name + ": what it syncs";
  if (!IsWritten(records, sync::DecisionKey(said.adapter, said.pool).text, said.last_decision))
    return name + ": its last decision";
  return "";
}

std::string WhyVerdictIsNot(const sync::VerdictStatus& said, const sync::Records& records) {
  const auto* record = Find<sync::VerdictRecord>(records, sync::VerdictKey(said.version).text);
  const bool is_there = record != nullptr && record->groups.contains(said.group) &&
                        record->groups.at(said.group).verdict == said.verdict;
  return is_there ? "" : "the verdict on " + ToString(said.version);
}

std::string WhyMemberIsNot(const sync::MemberStatus& said, const sync::Records& records) {
  const auto* record = Find<sync::MemberRecord>(records, sync::MemberKey(said.member).text);
  const bool is_there = record != nullptr && record->pool == said.pool &&
                        record->dead == (said.standing == sync::MemberStanding::kDead) &&
                        (said.observed.journal.empty() || record->journal == said.observed.journal);
  return is_there ? "" : said.member.value;
}

std::string WhyRowIsNot(const fleet::ObservedRow& said, const proxy::Records& journal) {
  const auto* row = Find<proxy::RowRecord>(journal, "row/" + said.adapter.value);
  const bool is_there = row != nullptr && row->incarnation == said.incarnation &&
                        row->epoch == said.epoch && row->open == !said.target.empty() &&
                        row->target == said.target;
  if (!is_there) return "what its row of " + said.adapter.value + " stands on";
  const bool is_locked = said.mode == fleet::RowMode::kLocked;
  return is_locked && row->locked != said.barrier ? "its lock of " + said.adapter.value : "";
}

std::string WhyResidencyIsNot(const fleet::ObservedResidency& said, const BootId& boot,
                              const proxy::Records& journal) {
  if (said.state != fleet::ResidencyState::kLoaded) return "";
  const auto* name = Find<proxy::NameRecord>(journal, "name/" + said.name.value);
  const bool is_there = name != nullptr && name->key == said.key && name->loaded_on == boot;
  return is_there ? "" : "that it has loaded " + said.name.value;
}

}  // namespace

std::string WhyNotWritten(const sync::Status& status, const sync::Records& records) {
  size_t with_records = 0;
  for (const sync::PoolStatus& pool : status.pools) {
    if (std::string why = WhyPoolIsNot(pool, records); !why.empty()) return why;
    with_records += records.contains(sync::PoolKey(pool.adapter, pool.pool).text) ? 1 : 0;
  }
  if (with_records != CountBelow(records, "pool/")) return "pools that it does not know";
  for (const sync::LeaseStatus& lease : status.leases) {
    const auto& [version, pool, holder, ttl_ms] = lease.record;
    const std::string key = sync::LeaseKey(version.key, pool, holder).text;
    if (!IsWritten(records, key, std::optional(lease.record))) return "a lease of " + holder;
  }
  if (status.leases.size() != CountBelow(records, "lease/")) return "leases that it does not know";
  for (const sync::VerdictStatus& verdict : status.verdicts) {
    if (std::string why = WhyVerdictIsNot(verdict, records); !why.empty()) return why;
  }
  for (const sync::MemberStatus& member : status.members) {
    if (std::string why = WhyMemberIsNot(member, records); !why.empty()) return why;
  }
  if (status.members.size() != CountBelow(records, "member/")) return "members that it has not";
  return "";
}

std::string WhyNotWritten(const proxy::Machine& machine, const proxy::Records& journal) {
  const fleet::Observed said = machine.Observe();
  const auto* id = Find<proxy::JournalRecord>(journal, "journal");
  if (id == nullptr || id->journal != said.journal) return "its journal's id";
  const auto* term = Find<proxy::TermRecord>(journal, "term");
  if ((term != nullptr ? term->term : Term()) != said.term) return "its term";
  for (const fleet::ObservedRow& row : said.rows) {
    if (std::string why = WhyRowIsNot(row, journal); !why.empty()) return why;
  }
  if (said.rows.size() != CountBelow(journal, "row/")) return "rows that it has not";
  for (const fleet::ObservedResidency& residency : said.residencies) {
    if (std::string why = WhyResidencyIsNot(residency, said.boot, journal); !why.empty())
      return why;
  }
  for (const fleet::Killer& killer : said.killers) {
    const auto* record = Find<proxy::KillerRecord>(journal, "killer/" + killer.name.value);
    if (record == nullptr || record->deaths != killer.deaths)
      return "how often its engine died of " + killer.name.value;
  }
  if (said.killers.size() != CountBelow(journal, "killer/")) return "killers that it forgot";
  const std::vector<proxy::DoorBinding>& bindings = machine.door_table().bindings;
  for (const proxy::DoorBinding& binding : bindings) {
    const auto* record = Find<proxy::BindingRecord>(journal, "binding/" + binding.name);
    if (record == nullptr || record->name != binding.target) return "its binding " + binding.name;
  }
  if (bindings.size() != CountBelow(journal, "binding/")) return "bindings that it has not";
  if (said.paused.has_value() != journal.contains("paused")) return "its pause";
  return "";
}

}  // namespace lorry::sim
