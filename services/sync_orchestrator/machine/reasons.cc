// The machine's reasons as words: what people, records and messages read.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lib/base/a_few.h"
#include "lib/base/error.h"
#include "services/sync_orchestrator/machine/state.h"
#include "services/sync_orchestrator/machine/trials.h"
#include "services/sync_orchestrator/machine/verdicts.h"

namespace lorry::sync {

std::string_view ToString(Verdict verdict) {
  switch (verdict) {
    case Verdict::kOpen:
      return "OPEN";
    case Verdict::kProven:
      return "PROVEN";
    case Verdict::kRefused:
      return "REFUSED";
    case Verdict::kPoisoned:
      return "POISONED";
    case Verdict::kStalls:
      return "STALLS_ENGINES";
  }
  return "OPEN";
}

std::string_view ToString(Drop drop) {
  switch (drop) {
    case Drop::kNone:
      return "";
    case Drop::kNoSlot:
      return "NO_SLOT";
    case Drop::kDead:
      return "MEMBER_DEAD";
    case Drop::kLost:
      return "MEMBER_LOST";
    case Drop::kExcluded:
      return "MEMBER_EXCLUDED";
    case Drop::kNotReady:
      return "MEMBER_NOT_READY";
    case Drop::kRestarted:
      return "ENGINE_RESTARTED";
    case Drop::kMoved:
      return "MEMBER_MOVED";
    case Drop::kFailed:
      return "STAGING_FAILED";
    case Drop::kBarred:
      return "VERSION_BARRED";
    case Drop::kUnfit:
      return "MEMBER_UNFIT";
    case Drop::kLeft:
      return "MEMBER_LEFT";
    case Drop::kTooSlow:
      return "STAGE_DEADLINE";
  }
  return "";
}

std::string_view ToString(Abort why) {
  switch (why) {
    case Abort::kNone:
      return "";
    case Abort::kPolicyChanged:
      return "POLICY_CHANGED";
    case Abort::kOverridden:
      return "OVERRIDDEN";
    case Abort::kRunFenced:
      return "RUN_FENCED";
    case Abort::kTooFewEngines:
      return "TOO_FEW_ENGINES";
    case Abort::kStageDeadline:
      return "STAGE_DEADLINE";
    case Abort::kUnreachable:
      return "MEMBER_UNREACHABLE";
    case Abort::kHoldEnded:
      return "HOLD_ENDED";
    case Abort::kBarrierDeadline:
      return "BARRIER_DEADLINE";
    case Abort::kRefused:
      return "REFUSED";
    case Abort::kPoisoned:
      return "POISONED";
    case Abort::kStalls:
      return "STALLS_ENGINES";
  }
  return "";
}

std::string_view ToString(Footing footing) {
  switch (footing) {
    case Footing::kUnread:
    case Footing::kSettled:
      return "";
    case Footing::kRecordsLost:
      return "RECORDS_LOST";
    case Footing::kStoreLost:
      return "STORE_LOST";
  }
  return "";
}

std::string_view Explain(Footing footing) {
  switch (footing) {
    case Footing::kUnread:
    case Footing::kSettled:
      return "";
    case Footing::kRecordsLost:
      return "the adapter-store or an engine remembers later decisions than the orchestrator's own "
             "records hold: they were lost, or an older copy of them was restored, or another "
             "orchestrator has the same --cluster. Nothing is decided, unloaded or released. Start "
             "it with the records that it had, if there are any; otherwise wait until every engine "
             "is attached, pin what must not move on (`lorry rollback`), and run `lorry adopt`";
    case Footing::kStoreLost:
      return "the adapter-store has forgotten what it had told the orchestrator it keeps: its data "
             "directory is empty, or an older copy, or another store's. Nothing is decided, "
             "unloaded or released. Start it with the directory that it had, if there is one; "
             "otherwise publish again what is needed, and run `lorry adopt`";
  }
  return "";
}

std::string_view ToString(Wait wait) {
  switch (wait) {
    case Wait::kNothing:
      return "";
    case Wait::kAttaching:
      return "MEMBERS_ATTACHING";
    case Wait::kHoldPending:
      return "HOLD_PENDING";
    case Wait::kRetryLater:
      return "RETRY_LATER";
    case Wait::kTooFewEngines:
      return "TOO_FEW_ENGINES";
    case Wait::kNoSlot:
      return "NO_SLOT";
    case Wait::kUnreachable:
      return "MEMBER_UNREACHABLE";
    case Wait::kRecordsLost:
      return ToString(Footing::kRecordsLost);
    case Wait::kStoreLost:
      return ToString(Footing::kStoreLost);
    case Wait::kOverridden:
      return "OVERRIDDEN";
    case Wait::kNextVersion:
      return "NEXT_VERSION";
    case Wait::kRefused:
      return "REFUSED";
    case Wait::kPoisoned:
      return "POISONED";
    case Wait::kStalls:
      return "STALLS_ENGINES";
  }
  return "";
}

absl::Status StatusOf(const GroupVerdict& verdict, const VersionKey& version) {
  return Error(absl::StatusCode::kFailedPrecondition, ToString(verdict.verdict),
               absl::StrCat(ToString(version), ": ", Explain(verdict),
                            "; publish another version, or lift the verdict to try it again"));
}

std::string Explain(const GroupVerdict& verdict) {
  switch (verdict.verdict) {
    case Verdict::kRefused:
      return absl::StrCat("engines refuse it: ", verdict.words);
    case Verdict::kPoisoned:
      return "engines died while they loaded or probed it";
    case Verdict::kStalls:
      return "engines hang when they load or probe it";
    case Verdict::kOpen:
    case Verdict::kProven:
      return "";
  }
  return "";
}

std::string ExplainBarred(const Core& core, const GroupVerdict& verdict) {
  if (IsBar(verdict)) return Explain(verdict);
  std::vector<std::string> names;
  for (const auto& [member, deaths] : verdict.deaths) {
    if (IsBarred(core, verdict, member)) names.push_back(member.value);
  }
  if (names.empty()) return "";
  return absl::StrCat("the engine of ", absl::StrJoin(names, ", "),
                      " died of it again and again, and others of its group have it: mend or "
                      "replace that engine, then lift the verdict to try it again");
}

std::string WhoTries(const Core& core, const Member& member, const VersionKey& version) {
  const auto trial = core.trials.find({version, member.group});
  std::vector<std::string> names;
  if (trial != core.trials.end()) {
    for (const auto& [id, its] : trial->second.tries) names.push_back(id.value);
    if (names.empty()) {
      for (const MemberId& id : trial->second.at_risk) names.push_back(id.value);
    }
  }
  if (names.empty()) return "an engine like it is to try it first, and none can now";
  return absl::StrCat(AFew(names), names.size() == 1 ? " tries it first" : " try it first");
}

}  // namespace lorry::sync
