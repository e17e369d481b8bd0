// Records and stores of the simulated fleet that are lost, or older than they were.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "services/sync_orchestrator/machine/keys.h"
#include "tests/sim/narrate.h"
#include "tests/sim/world.h"

namespace lorry::sim {

void World::RestoreStore() {
  Narrate(sim_, "store", "is that of a backup");
  const auto before = store_.versions();
  store_.RestoreBackUp();
  // What had been deleted was forgotten, with what engines died of it.
  for (const auto& [key, version] : store_.versions()) {
    if (!before.contains(key)) sim_.lives.ComesBack(key);
  }
  answers_.Forget();
  sim_.oracle.StoreForgot(StoreKnowsOfMore(), store_.held(), shared_.records);
  BreakWatch(0);
}

// Whether the store remembers more than the records do.
bool World::StoreKnowsOfMore() const {
  const std::optional<sync::HoldsMark>& remembered = store_.remembered();
  const auto meta = shared_.records.find("meta");
  if (!remembered.has_value() || meta == shared_.records.end()) return remembered.has_value();
  const auto& known = std::get<sync::MetaRecord>(meta->second);
  const auto holds = shared_.records.find("holds");
  const Revision sent =
      holds != shared_.records.end() ? std::get<sync::HoldsRecord>(holds->second).sent : Revision();
  return known.worth != sync::Worth::kSettled ||
         *remembered > sync::HoldsMark{known.term.incarnation, sent};
}

void World::BeginWith(sync::Records records) {
  sim_.oracle.BeginsWith(records);
  shared_.records = std::move(records);
}

void World::LoseRecords() {
  Narrate(sim_, "records", "are lost");
  shared_.records.clear();
  answers_.Forget();
  restored_.clear();
  left_.clear();
  sim_.oracle.RecordsLost(StoreKnowsOfMore(), shared_.records);
  sim_.lives.RecordsLost();
  NoteLeavesAnew();
}

void World::BackUp(bool whole) {
  backup_ = shared_.records;
  is_backup_whole_ = whole;
  if (whole) store_.BackUp();
}

void World::RestoreRecords() {
  if (backup_.empty()) return;
  if (is_backup_whole_) RestoreStore();
  Narrate(sim_, "records", "are those of a backup");
  shared_.records = backup_;
  answers_.Forget();
  restored_.clear();
  for (const auto& [key, value] : backup_) {
    if (const auto* member = std::get_if<sync::MemberRecord>(&value))
      restored_[MemberId(sync::LastPart(key))] = member->journal;
  }
  left_.clear();
  sim_.oracle.RecordsLost(StoreKnowsOfMore(), shared_.records);
  sim_.lives.RecordsLost();
  NoteLeavesAnew();
}

// 18: records that a member of their own roster knows to be older are not gone on with.
void World::CheckRemembered(uint64_t leader, const sync::SessionOpened& opened) {
  const fleet::Observed& said = opened.observed;
  const auto restored = restored_.find(opened.member);
  const auto meta = shared_.records.find("meta");
  if (restored == restored_.end() || restored->second != said.journal || shared_.writer != leader ||
      meta == shared_.records.end() || !shared_.records.contains("member/" + opened.member.value)) {
    return;
  }
  const Term term = std::get<sync::MetaRecord>(meta->second).term;
  const bool is_later =
      said.term > term || std::ranges::any_of(said.rows, [&](const fleet::ObservedRow& row) {
        return row.incarnation == term.incarnation &&
               std::max(row.epoch, row.barrier) > shared_.EpochOf(row.adapter, opened.pool);
      });
  if (is_later && Find(leader)->machine().GetStatus().footing == sync::Footing::kSettled)
    sim_.oracle.Violate(
        18, absl::StrCat(opened.member.value, " knows of later decisions, and nobody believes it"));
}

}  // namespace lorry::sim
