#include "services/engine_proxy/machine/pause_table.h"

namespace lorry::proxy {
namespace {

using S = PauseState;
using E = PauseEvent;
using A = PauseAsk;
using W = PauseWrite;

constexpr PauseTransition kTable[] = {
    {S::kNone, E::kWanted, S::kPausing, A::kPause, W::kPaused},
    {S::kNone, E::kLetGo, S::kResuming, A::kResume, W::kPaused},
    {S::kPausing, E::kHolds, S::kPaused},
    {S::kPausing, E::kFails, S::kResuming, A::kResume},
    {S::kPausing, E::kEnds, S::kResuming, A::kResume},
    {S::kPausing, E::kBootEnded, S::kNone, A::kNothing, W::kNotPaused},
    {S::kPaused, E::kEnds, S::kResuming, A::kResume},
    {S::kPaused, E::kAskedAgain, S::kPausing, A::kPause, W::kPaused},
    {S::kPaused, E::kBootEnded, S::kNone, A::kNothing, W::kNotPaused},
    {S::kResuming, E::kResumeDue, S::kResuming, A::kResume},
    {S::kResuming, E::kResumed, S::kNone, A::kNothing, W::kNotPaused},
    {S::kResuming, E::kBootEnded, S::kNone, A::kNothing, W::kNotPaused},
};

}  // namespace

std::span<const PauseTransition> PauseTable() { return kTable; }

}  // namespace lorry::proxy
