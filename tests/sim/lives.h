// The lives of engines, as a coroner counts them: which versions an engine was trying when it died,
// and which of them killed it. The machines' own words are not asked.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>

#include "lib/fleet/engine_name.h"
#include "tests/sim/oracle.h"

namespace lorry::sim {

// Engines of one group take a version alike: what one of them died of kills the others.
std::string GroupOf(const fleet::EngineLimits& limits);

class Lives {
 public:
  explicit Lives(Oracle& oracle) : oracle_(oracle) {}

  // An engine died while it loaded or first used it, of whatever; where it hung before that, it was
  // one life.
  void DiedTrying(const VersionKey& version, const BootId& boot);
  // Its proxy was given no answer to a load in time, of whatever.
  void HungTrying(const VersionKey& version, const BootId& boot) { hung_[version].insert(boot); }
  // It was the version that killed it. A version costs at most two lives of a group, whatever asked
  // for it; each loss of records may cost as many again.
  void DiedOf(const VersionKey& version, const std::string& group, const std::string& member,
              const BootId& boot);
  // A leader has heard from the member, of this boot: what another one died of is told. A proxy that
  // lost its journal has nothing to tell before it sees another boot.
  void Heard(const std::string& member, const BootId& boot);
  void JournalLost(const std::string& member);
  // What the member's engine died of last blames nobody, unless it is told.
  void TakeBackUntold(const std::string& member);
  // An operator took the member out: so it is with what its engine dies of before it is taken back.
  void PutAside(const std::string& member);
  void TakenBack(const std::string& member) { aside_.erase(member); }
  // It said goodbye: as if an operator had taken it out, until its proxy is back.
  void Left(const std::string& member) {
    away_.insert(member);
    TakeBackUntold(member);
  }
  void IsBack(const std::string& member) { away_.erase(member); }
  void RecordsLost() { ++losses_; }
  // An operator lets engines try it again, as many as the first time.
  void Lifted(const VersionKey& version) { ++lifted_[version]; }
  // It was deleted and forgotten, and a store that was restored has it again: likewise.
  void ComesBack(const VersionKey& version) { ++lifted_[version]; }
  // The fleet says of it that engines died: of two boots while they tried it, or it is innocent.
  void SaidToKill(const VersionKey& version);
  // An engine did not take it, or did not apply it; or it was trained on another base model.
  void Refused(const VersionKey& version, const std::string& member) {
    ++refused_[version][member];
  }
  void Misfits(const VersionKey& version) { misfits_.insert(version); }
  // The fleet says of it that engines refuse it: two of them did, or one three times.
  void SaidToBeRefused(const VersionKey& version);
  // Some engine died of it, or refused it.
  bool IsToBlame(const VersionKey& version) const {
    return tried_.contains(version) || refused_.contains(version) || misfits_.contains(version);
  }
  bool IsAnyToBlame(const AdapterName& adapter) const;
  bool DiedTwice(const VersionKey& version) const;
  // Of two boots that died or hung: what engines hang of may be said of it.
  bool CostTwo(const VersionKey& version) const;

 private:
  Oracle& oracle_;
  uint32_t losses_ = 0;
  std::map<VersionKey, uint32_t> lifted_;
  std::map<VersionKey, uint32_t> tried_;
  std::map<VersionKey, std::multiset<BootId>> hung_;               // and has not died since
  std::map<VersionKey, std::map<std::string, uint32_t>> refused_;  // by member
  std::set<VersionKey> misfits_;
  std::map<std::pair<VersionKey, std::string>, uint32_t> killed_;
  struct Death {
    std::pair<VersionKey, std::string> of;
    BootId boot;
    bool is_forgotten = false;  // by its proxy
  };
  std::map<std::string, Death> untold_;  // the last of each member
  std::set<std::string> aside_;
  std::set<std::string> away_;
};

}  // namespace lorry::sim
