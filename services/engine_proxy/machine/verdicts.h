// Verdicts: which version the proxy blames when its engine dies.
//
// A version is on trial on a boot from the moment the engine is asked to load it until the engine
// has answered a token with it, has refused it, or has failed in a way that says nothing against
// it. At most one version at a time is loaded, verified, probed or doubted, so that it is known
// what an engine died of. A call that got no answer in time leaves its version on trial while other
// versions are loaded; if the engine dies then, the version whose trial began first is blamed, as
// its call was the first to go wrong. An engine that was gone before the load reached it did not
// die of it, and one that answers the load has not ended: while the load has no answer the verdict
// waits for that, but not beyond the next boot. Where the same boot is seen again, nobody is blamed.
// Trials are in the journal, so that the next process blames the same version as this one would.
// The end of a WEDGED engine, which has to be restarted anyway, is blamed on a probe alone.
#pragma once

#include "services/engine_proxy/machine/state.h"

namespace lorry::proxy {

void BeginTrial(Core& core, Residency& residency);  // the caller writes it down
void EndTrial(Residency& residency);                // likewise
void LeaveTrial(Residency& residency);              // likewise; its probe begins another

// Whether some version is loaded, verified, probed or doubted now.
bool IsSomeoneOnTrial(const Core& core);

// Whether it is on trial for a load that got no answer, asked for by this process or an earlier
// one, and that may still happen.
bool IsLeftOnTrial(const Core& core, const Residency& residency);

// The engine answered a later call, so that the loads without an answer have done it no harm: ends
// their trials.
void EndLeftTrials(Core& core);

// That boot ended: blames the version whose trial on it began first, and ends the boot's trials.
void JudgeBoot(Core& core, const BootId& boot);

// Takes the answer to a load during which, or before which, the engine seemed to end: it is blamed
// unless the load was never sent, or the engine did answer.
void HearAccused(Core& core, OpId load, Outcome outcome);

}  // namespace lorry::proxy
