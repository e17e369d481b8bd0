// Keys of the orchestrator's records. Names cannot contain '/', so a key reads back unambiguously.
#pragma once

#include <string>

#include "services/sync_orchestrator/machine/records.h"

namespace lorry::sync {

std::string MetaKey();
std::string HoldsKey();
std::string MemberKey(const MemberId& member);
std::string PoolKey(const AdapterName& adapter, const PoolName& pool);
std::string SyncKey(const AdapterName& adapter, const PoolName& pool);
std::string DecisionKey(const AdapterName& adapter, const PoolName& pool);
std::string RequestsKey(const AdapterName& adapter, const PoolName& pool);
std::string LeaseKey(const VersionKey& version, const PoolName& pool, const std::string& holder);
// What keys of all leases of one adapter, or of one pool of it, begin with.
std::string LeaseKeyPrefix(const AdapterName& adapter);
std::string LeaseKeyPrefix(const AdapterName& adapter, const PoolName& pool);
std::string VerdictKey(const VersionKey& version);

// The last component ("member/m1" -> "m1"), and the two of "pool/<adapter>/<pool>".
std::string LastPart(const std::string& key);
std::string MiddlePart(const std::string& key);

}  // namespace lorry::sync
