#include "services/sync_orchestrator/machine/keys.h"

#include <string_view>

#include "absl/strings/str_cat.h"
#include "lib/base/strings.h"

namespace lorry::sync {

namespace {

RecordKey OfPool(std::string_view kind, const AdapterName& adapter, const PoolName& pool) {
  return {.text = absl::StrCat(ToAbsl(kind), "/", adapter.value, "/", pool.value),
          .of = RecordKey::Of::kPool,
          .pool = {adapter, pool}};
}

}  // namespace

RecordKey MetaKey() { return {.text = "meta"}; }
RecordKey HoldsKey() { return {.text = "holds"}; }
RecordKey MemberKey(const MemberId& member) {
  return {.text = absl::StrCat("member/", member.value),
          .of = RecordKey::Of::kMember,
          .member = member};
}
RecordKey PoolKey(const AdapterName& adapter, const PoolName& pool) {
  return OfPool("pool", adapter, pool);
}
RecordKey SyncKey(const AdapterName& adapter, const PoolName& pool) {
  return OfPool("sync", adapter, pool);
}
RecordKey DecisionKey(const AdapterName& adapter, const PoolName& pool) {
  return OfPool("decision", adapter, pool);
}
RecordKey RequestsKey(const AdapterName& adapter, const PoolName& pool) {
  return OfPool("requests", adapter, pool);
}
RecordKey LeaseKey(const VersionKey& version, const PoolName& pool, const std::string& holder) {
  return {.text = absl::StrCat(LeaseKeyPrefix(version.adapter, pool), version.run.value, ".",
                               version.number.value, "/", holder),
          .of = RecordKey::Of::kPool,
          .pool = {version.adapter, pool}};
}
std::string LeaseKeyPrefix(const AdapterName& adapter) {
  return absl::StrCat("lease/", adapter.value, "/");
}
std::string LeaseKeyPrefix(const AdapterName& adapter, const PoolName& pool) {
  return absl::StrCat(LeaseKeyPrefix(adapter), pool.value, "/");
}
RecordKey VerdictKey(const VersionKey& version) {
  return {.text = absl::StrCat("verdict/", version.adapter.value, "/", version.run.value, ".",
                               version.number.value),
          .of = RecordKey::Of::kAdapter,
          .pool = {version.adapter, PoolName()}};
}

std::string LastPart(const std::string& key) { return key.substr(key.rfind('/') + 1); }
std::string MiddlePart(const std::string& key) {
  const size_t first = key.find('/');
  return key.substr(first + 1, key.find('/', first + 1) - first - 1);
}

}  // namespace lorry::sync
