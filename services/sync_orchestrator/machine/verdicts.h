// Verdicts: what is known of loading a version into a group of engines, which are so much alike
// that what happens to one of them will happen to the others. A failure belongs to a member. A
// verdict, which takes an engine's death or the failures of several members, belongs to the version
// and is durable. trials.h decides by verdicts who may load a version.
#pragma once

#include <string>

#include "services/sync_orchestrator/machine/state.h"

namespace lorry::sync {

// Engine kind, engine version, limits set by its flags, and base model.
EngineGroup GroupOf(const fleet::Observed& observed);
// The same, of the engine that the member reports. A proxy that has just begun does not know yet
// what engine it has: that of the one before, which is empty where there was none.
EngineGroup GroupOf(const Member& member);

// What is known in the group; OPEN where nothing is.
const GroupVerdict& VerdictOf(const Core& core, const EngineGroup& group,
                              const VersionKey& version);

// Whether it keeps engines from loading the version: neither OPEN nor PROVEN.
bool IsBar(const GroupVerdict& verdict);

// Whether the version may not be loaded by this member's engine: because of such a verdict, or
// because this engine, and it alone, died of a version that the group has PROVEN, too often.
bool IsBarred(const Core& core, const Member& member, const VersionKey& version);
bool IsBarred(const Core& core, const GroupVerdict& verdict, const MemberId& member);

// The verdict for which the pool gives the version up: without the members that it keeps from
// loading it there are too few for `min_engines`. Null when there is none.
const GroupVerdict* GivenUp(const Core& core, const PoolId& id, const VersionKey& version);

// Engines that the version cost the group: dead, hung, or of members that were LOST in their try.
uint32_t LivesSpent(const GroupVerdict& verdict);
// Whether the engine of this boot is among them, as one that hung.
bool HasHung(const GroupVerdict& verdict, const MemberId& member, const BootId& boot);

// Leave to try the version, for the boot that the member has now. It is a record before the member
// hears of it: whatever becomes of the member, its journal and this reign, an engine that ends in
// its try is counted.
void GiveLeave(Core& core, const EngineGroup& group, const VersionKey& version,
               const Member& member);
// Takes the leave back: the member did not use it, or nothing came of it.
void EndLeave(Core& core, const EngineGroup& group, const VersionKey& version,
              const MemberId& member);
// Takes back all of the member's leaves: it has said goodbye, and whatever ends its engine from
// then on says nothing of any version. What it was loading its engine may end of when it is back.
void EndLeaves(Core& core, const MemberId& member);
// The member is LOST in its try, and nobody tells what came of it: that counts as an engine that
// hangs, until the member is back.
void LoseLeave(Core& core, const EngineGroup& group, const VersionKey& version,
               const MemberId& member);

// What a report says for or against versions. `before` is the member's last report of this session,
// null for the first.
void TakeEvidence(Core& core, Member& member, const fleet::Observed* before);

// Counts evidence that came before anybody asked whether the group takes the version: deaths under
// an engine name that nobody had asked for yet, and engines that have had it loaded since an
// earlier reign.
void LookBack(Core& core, const EngineGroup& group, const VersionInfo& version);

// Counts what a member told while an operator had excluded it, as a proxy tells each misfit only
// once.
void LookBackAtMember(Core& core, const Member& member);

void HandleVerdictLifted(Core& core, const VerdictLifted& event);

// For people; empty for what is no bar.
std::string Explain(const GroupVerdict& verdict);
// And for one that bars only some members; empty when it bars none.
std::string ExplainBarred(const Core& core, const GroupVerdict& verdict);
// Of a call that asks for a version that is given up: FAILED_PRECONDITION REFUSED, POISONED or
// STALLS_ENGINES.
absl::Status StatusOf(const GroupVerdict& verdict, const VersionKey& version);

}  // namespace lorry::sync
