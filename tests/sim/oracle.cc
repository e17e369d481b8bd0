#include "tests/sim/oracle.h"

#include "absl/strings/str_cat.h"
#include "services/sync_orchestrator/machine/keys.h"

namespace lorry::sim {

void Oracle::Violate(int invariant, const std::string& what) {
  if (!violation_.has_value()) {
    violation_ = absl::StrCat("invariant ", invariant, " at ", now_(), " ms: ", what);
  }
}

void Oracle::NameMeans(const EngineName& name, const Digest& content) {
  const auto [it, is_new] = contents_.emplace(name, content);
  if (!is_new && it->second != content) Violate(1, absl::StrCat(name.value, " means two contents"));
}

void Oracle::Durable(const Term& term, const sync::Record& record) {
  if (!record.value.has_value()) return;
  const auto id = [&](Epoch epoch) {
    return EpochKey{term.incarnation, AdapterName(sync::MiddlePart(record.key)),
                    PoolName(sync::LastPart(record.key)), epoch};
  };
  if (const auto* sync = std::get_if<sync::SyncRecord>(&*record.value)) {
    const auto [it, is_new] = started_.emplace(id(sync->epoch), sync->version.key);
    if (!is_new && it->second != sync->version.key) {
      Violate(3, absl::StrCat("epoch ", sync->epoch.value, " syncs ", ToString(it->second), " and ",
                              ToString(sync->version.key)));
    }
  }
  if (const auto* decision = std::get_if<sync::DecisionRecord>(&*record.value)) {
    const auto [it, is_new] = decided_.emplace(id(decision->epoch), *decision);
    if (is_new) ++(decision->commit ? commits_ : aborts_);
    if (!is_new && it->second != *decision) {
      Violate(4, absl::StrCat("epoch ", decision->epoch.value,
                              " was decided twice: ", it->second.commit ? "COMMIT" : "ABORT",
                              " and ", decision->commit ? "COMMIT" : "ABORT"));
    }
  }
}

void Oracle::RowOpened(const JournalId& journal, uint64_t incarnation, const AdapterName& adapter,
                       const PoolName& pool, Epoch epoch, const VersionKey& version) {
  const auto decided = decided_.find(EpochKey{incarnation, adapter, pool, epoch});
  if (decided == decided_.end() || !decided->second.commit || decided->second.version != version) {
    Violate(4, absl::StrCat("a row of ", adapter.value, " opened ", ToString(version), " at epoch ",
                            epoch.value, ", which was not committed"));
  }
  Epoch& last = opened_[{journal, incarnation, adapter}];
  if (epoch < last) {
    Violate(3, absl::StrCat("a row's epoch fell from ", last.value, " to ", epoch.value));
  }
  last = epoch;
}

void Oracle::StaleDocument(const fleet::Observed& before, const fleet::Observed& after) {
  if (before.term != after.term || before.revision != after.revision || before.rows != after.rows) {
    Violate(9, "a document of a lower term changed a proxy");
  }
}

void Oracle::Answered(sync::RequestId request) {
  if (++answers_[request] > 1) Violate(14, absl::StrCat("call ", request, " was answered twice"));
}

}  // namespace lorry::sim
