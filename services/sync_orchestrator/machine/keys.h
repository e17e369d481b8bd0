// Keys of the orchestrator's records. Names cannot contain '/', so a key reads back unambiguously.
#pragma once

#include <string>

#include "services/sync_orchestrator/machine/changes.h"
#include "services/sync_orchestrator/machine/records.h"

namespace lorry::sync {

RecordKey MetaKey();
RecordKey HoldsKey();
RecordKey MemberKey(const MemberId& member);
RecordKey PoolKey(const AdapterName& adapter, const PoolName& pool);
RecordKey SyncKey(const AdapterName& adapter, const PoolName& pool);
RecordKey DecisionKey(const AdapterName& adapter, const PoolName& pool);
RecordKey RequestsKey(const AdapterName& adapter, const PoolName& pool);
RecordKey LeaseKey(const VersionKey& version, const PoolName& pool, const std::string& holder);
// What the keys of all leases of one adapter, or of one of its pools, begin with.
std::string LeaseKeyPrefix(const AdapterName& adapter);
std::string LeaseKeyPrefix(const AdapterName& adapter, const PoolName& pool);
RecordKey VerdictKey(const VersionKey& version);

// The last component ("member/m1" -> "m1"), and the two of "pool/<adapter>/<pool>".
std::string LastPart(const std::string& key);
std::string MiddlePart(const std::string& key);

}  // namespace lorry::sync
