#include "lib/fleet/unknown_pool.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/base/a_few.h"
#include "lib/base/did_you_mean.h"
#include "lib/base/error.h"

namespace lorry::fleet {

absl::Status UnknownPool(const AdapterName& adapter, const AdapterPolicy& policy,
                         const PoolName& pool) {
  std::vector<std::string> known;
  for (const auto& [name, source] : policy.pools) known.push_back(name.value);
  return Error(absl::StatusCode::kNotFound, "UNKNOWN_POOL",
               absl::StrCat("the policy of ", adapter.value, " names no pool ", pool.value,
                            ", only ", AFew(known), DidYouMean(pool.value, known)));
}

}  // namespace lorry::fleet
