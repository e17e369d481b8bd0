#include "services/engine_proxy/machine/row_table.h"

namespace lorry::proxy {
namespace {

using S = RowState;
using E = RowEvent;
using W = RowWrite;

constexpr RowTransition kTable[] = {
    {S::kClosed, E::kServes, S::kOpen},
    {S::kClosed, E::kDecided, S::kOpen, W::kDecision},
    {S::kClosed, E::kCannotServe, S::kClosed, W::kShut},
    {S::kClosed, E::kLock, S::kLocked, W::kLock},
    {S::kClosed, E::kClose, S::kClosed, W::kClosed},
    {S::kClosed, E::kLeaves, S::kClosed, W::kWaits},
    {S::kOpen, E::kStopsServing, S::kClosed},
    {S::kOpen, E::kDecided, S::kOpen, W::kDecision},
    {S::kOpen, E::kCannotServe, S::kClosed, W::kShut},
    {S::kOpen, E::kHold, S::kHeld},
    {S::kOpen, E::kClose, S::kClosed, W::kClosed},
    {S::kOpen, E::kLeaves, S::kClosed, W::kWaits},
    {S::kHeld, E::kStopsServing, S::kClosed},
    {S::kHeld, E::kDecided, S::kOpen, W::kDecision},
    {S::kHeld, E::kGoesOn, S::kOpen},
    {S::kHeld, E::kCannotServe, S::kClosed, W::kShut},
    {S::kHeld, E::kHold, S::kHeld},
    {S::kHeld, E::kHoldEnds, S::kOpen},
    {S::kHeld, E::kLock, S::kLocked, W::kLock},
    {S::kHeld, E::kClose, S::kClosed, W::kClosed},
    {S::kHeld, E::kLeaves, S::kClosed, W::kWaits},
    {S::kLocked, E::kDecided, S::kOpen, W::kDecision},
    {S::kLocked, E::kLock, S::kLocked, W::kLock},
    {S::kLocked, E::kGoesOn, S::kOpen, W::kUnlocked},
    {S::kLocked, E::kCannotServe, S::kClosed, W::kShut},
    {S::kLocked, E::kClose, S::kClosed, W::kClosed},
    {S::kLocked, E::kLeaves, S::kLocked, W::kWaits},
};

}  // namespace

std::span<const RowTransition> RowTable() { return kTable; }

}  // namespace lorry::proxy
