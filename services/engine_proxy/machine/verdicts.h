// Verdicts: what makes a version blamed here.
//
// A version is on trial on a boot from the moment the engine is asked to load it until the engine
// has answered for it: by a token, or by words that end the matter. At most one version at a time
// is loaded, verified, probed or doubted, so that an engine that dies names its killer. A call
// that got no answer in time leaves its version on trial while others go on; if the engine dies
// then, the one whose trial began first is blamed, because its call was the first to go wrong.
// An engine that was gone before it could hear of the load did not die of it: where the load has no
// answer yet, the verdict waits for that, and at the latest for the next boot.
// Trials are in the journal: whoever notices the death, this process or the next one, blames the
// same version. A WEDGED engine is restarted as it must be, and nobody is blamed for that.
#pragma once

#include "services/engine_proxy/machine/state.h"

namespace lorry::proxy {

void BeginTrial(Core& core, Residency& residency);  // the caller writes it down
void EndTrial(Residency& residency);                // likewise

// Some version is loaded, verified, probed or doubted now.
bool IsSomeoneOnTrial(const Core& core);

// Its load there, asked for by this process or an earlier one, got no answer and may happen yet.
bool IsLeftOnTrial(const Core& core, const Residency& residency);

// The engine answered a later call: what was only left on trial did it no harm.
void EndLeftTrials(Core& core);

// That boot ended: blames whom it may concern, and ends its trials.
void JudgeBoot(Core& core, const BootId& boot);

// The answer to a load that the engine ended in, or before.
void HearAccused(Core& core, OpId load, Outcome outcome);

}  // namespace lorry::proxy
