// Rest: where policy asks for it, an engine comes to rest before a row is LOCKED, or flips from one
// version to another (docs/SEMANTICS.md §4). The row is shut first, so that nothing new begins;
// then a pause of the engine holds, or what it had in flight has ended.
#pragma once

#include <string>

#include "services/engine_proxy/machine/state.h"

namespace lorry::proxy {

// An OPEN row that is to follow a decision holds first, unless it has held long enough for that one.
bool HoldsBeforeFlip(const fleet::DesiredRow& wanted, const Row& row);

// A pause of the engine is to begin for the row: it is shut, and waits for nothing else.
bool WantsPause(const Core& core, const fleet::DesiredRow& wanted, const Row& row);

// A pause that was begun for the row in this epoch is to go on.
bool NeedsPause(const Core& core, const fleet::DesiredRow& wanted, const Row& row, Epoch epoch);

// Where the engine was not paused after all, the row waits for its requests to end.
bool IsAtRest(const Core& core, const fleet::DesiredRow& wanted, const Row& row);

// For people; empty while the row waits for no such thing.
std::string WhatRestWaitsFor(const Core& core, const fleet::DesiredRow& wanted, const Row& row);

}  // namespace lorry::proxy
