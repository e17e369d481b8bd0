#include "services/sync_orchestrator/machine/keys.h"

#include "absl/strings/str_cat.h"

namespace lorry::sync {

std::string MetaKey() { return "meta"; }
std::string HoldsKey() { return "holds"; }
std::string MemberKey(const MemberId& member) { return absl::StrCat("member/", member.value); }
std::string PoolKey(const AdapterName& adapter, const PoolName& pool) {
  return absl::StrCat("pool/", adapter.value, "/", pool.value);
}
std::string SyncKey(const AdapterName& adapter, const PoolName& pool) {
  return absl::StrCat("sync/", adapter.value, "/", pool.value);
}
std::string DecisionKey(const AdapterName& adapter, const PoolName& pool) {
  return absl::StrCat("decision/", adapter.value, "/", pool.value);
}
std::string RequestsKey(const AdapterName& adapter, const PoolName& pool) {
  return absl::StrCat("requests/", adapter.value, "/", pool.value);
}
std::string LeaseKey(const VersionKey& version, const PoolName& pool, const std::string& holder) {
  return absl::StrCat(LeaseKeyPrefix(version.adapter, pool), version.run.value, ".",
                      version.number.value, "/", holder);
}
std::string LeaseKeyPrefix(const AdapterName& adapter) {
  return absl::StrCat("lease/", adapter.value, "/");
}
std::string LeaseKeyPrefix(const AdapterName& adapter, const PoolName& pool) {
  return absl::StrCat(LeaseKeyPrefix(adapter), pool.value, "/");
}
std::string VerdictKey(const VersionKey& version) {
  return absl::StrCat("verdict/", version.adapter.value, "/", version.run.value, ".",
                      version.number.value);
}

std::string LastPart(const std::string& key) { return key.substr(key.rfind('/') + 1); }
std::string MiddlePart(const std::string& key) {
  const size_t first = key.find('/');
  return key.substr(first + 1, key.find('/', first + 1) - first - 1);
}

}  // namespace lorry::sync
