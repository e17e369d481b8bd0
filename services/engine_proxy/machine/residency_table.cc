#include "services/engine_proxy/machine/residency_table.h"

namespace lorry::proxy {
namespace {

using S = ResidencyState;
using E = ResidencyEvent;
using A = ResidencyAsk;
using W = ResidencyWrite;

constexpr ResidencyTransition kTable[] = {
    {S::kAbsent, E::kWanted, S::kFetching, A::kFetch},
    {S::kAbsent, E::kFetched, S::kFetched, A::kNothing, W::kName},
    {S::kAbsent, E::kMayBeUnloaded, S::kUnloading, A::kUnload, W::kUnloading},
    {S::kAbsent, E::kUnloadUnanswered, S::kUnloading, A::kUnload},
    {S::kFetching, E::kFetched, S::kFetched, A::kNothing, W::kName},
    {S::kFetching, E::kFetchPutOff, S::kAbsent},
    {S::kFetching, E::kFetchFailed, S::kFailed},
    {S::kFetching, E::kNotWanted, S::kCancelling, A::kCancel},
    {S::kFetching, E::kListed, S::kCancelling, A::kCancel},
    {S::kCancelling, E::kFetched, S::kFetched, A::kNothing, W::kName},
    {S::kCancelling, E::kFetchEnded, S::kAbsent},
    {S::kFetched, E::kNotProven, S::kHashing, A::kHash},
    {S::kFetched, E::kNotCompared, S::kChecking, A::kCheck},
    {S::kFetched, E::kMayBeDeleted, S::kDeleting, A::kDelete},
    {S::kFetched, E::kGetsSlot, S::kLoading, A::kLoad, W::kName},
    {S::kFetched, E::kListedAsOurs, S::kProbing, A::kProbe, W::kName},
    {S::kFetched, E::kMayBeUnloaded, S::kUnloading, A::kUnload, W::kUnloading},
    {S::kFetched, E::kUnloadUnanswered, S::kUnloading, A::kUnload},
    {S::kHashing, E::kProven, S::kFetched},
    {S::kHashing, E::kBroken, S::kFetched, A::kNothing, W::kName},
    {S::kChecking, E::kFits, S::kFetched},
    {S::kChecking, E::kMisfit, S::kFailed},
    {S::kChecking, E::kUnreadable, S::kFailed},
    {S::kDeleting, E::kDeleted, S::kAbsent, A::kNothing, W::kNoName},
    {S::kDeleting, E::kNotDeleted, S::kFetched},
    {S::kLoading, E::kAnswered, S::kVerifying},
    {S::kLoading, E::kBrokeOff, S::kDoubted},
    {S::kLoading, E::kBootEnded, S::kFetched, A::kNothing, W::kName},
    {S::kVerifying, E::kListedAsOurs, S::kProbing, A::kProbe},
    {S::kVerifying, E::kNotListed, S::kFailed, A::kNothing, W::kName},
    {S::kVerifying, E::kNotBelieved, S::kFetched, A::kNothing, W::kName},
    {S::kVerifying, E::kBootEnded, S::kFetched, A::kNothing, W::kName},
    {S::kProbing, E::kPassed, S::kLoaded, A::kNothing, W::kName},
    {S::kProbing, E::kFailed, S::kFailed, A::kNothing, W::kName},
    {S::kProbing, E::kBrokeOff, S::kDoubted},
    {S::kProbing, E::kNotBelieved, S::kFetched, A::kNothing, W::kName},
    {S::kProbing, E::kBootEnded, S::kFetched, A::kNothing, W::kName},
    {S::kDoubted, E::kEngineLives, S::kVerifying},
    {S::kDoubted, E::kFailed, S::kFailed, A::kNothing, W::kName},
    {S::kDoubted, E::kBootEnded, S::kFetched, A::kNothing, W::kName},
    {S::kLoaded, E::kVanished, S::kFetched},
    {S::kLoaded, E::kNotBelieved, S::kFetched},
    {S::kLoaded, E::kMayBeUnloaded, S::kUnloading, A::kUnload, W::kUnloading},
    {S::kLoaded, E::kBootEnded, S::kFetched},
    {S::kUnloading, E::kUnloadAnswered, S::kFetched, A::kNothing, W::kNoUnloading},
    {S::kUnloading, E::kUnloadHangs, S::kUnloading, A::kNothing, W::kWedged},
    {S::kUnloading, E::kBootEnded, S::kFetched},
    {S::kFailed, E::kMayBeTried, S::kFetched},
    {S::kFailed, E::kMayBeUnloaded, S::kUnloading, A::kUnload, W::kUnloading},
    {S::kFailed, E::kUnloadUnanswered, S::kUnloading, A::kUnload},
};

}  // namespace

std::span<const ResidencyTransition> ResidencyTable() { return kTable; }

}  // namespace lorry::proxy
