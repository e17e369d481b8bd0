// Rest: where policy asks for it, an engine comes to rest before a row is LOCKED, or flips from one
// version to another (docs/SEMANTICS.md §4). The row is shut first, so that nothing new begins;
// then a pause of the engine holds, or what it had in flight has ended.
#pragma once

#include <string>

#include "services/engine_proxy/machine/state.h"

namespace lorry::proxy {

// Whether a row that is to go to another version has to hold first: not where it has held for that
// decision already, and was let go by its deadline.
bool HoldsBeforeFlip(const fleet::DesiredRow& wanted, const Row& row);

// Whether a pause of the engine is to begin for the row, which is shut and waits for nothing else.
bool WantsPause(const Core& core, const fleet::DesiredRow& wanted, const Row& row);

// Whether a pause that was begun for the row in this epoch is to go on.
bool NeedsPause(const Core& core, const fleet::DesiredRow& wanted, const Row& row, Epoch epoch);

// Whether the engine is at rest for the row: it is paused, or, where it was not paused after all,
// has no request left that the row has to wait for.
bool IsAtRest(const Core& core, const fleet::DesiredRow& wanted, const Row& row);

// For people: what the row waits for before its engine is at rest; empty where it waits for
// nothing.
std::string WhatRestWaitsFor(const Core& core, const fleet::DesiredRow& wanted, const Row& row);

}  // namespace lorry::proxy
