// An adapter's policy in words, as `lorry policy` reads and prints it. Fields are named as in
// lorry.common.v1.AdapterPolicy. Pure functions.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "clients/cli/verb.h"
#include "lorry/common/v1/adapter.pb.h"

namespace lorry::cli {

// "mode=barrier", "keep=3", "keep=all", "min_engines=75%", "stage_deadline_ms=90s",
// "quota_bytes=10GiB", "pools=rollout,eval=rollout,canary=@best"; "field=default" unsets it.
// INVALID_ARGUMENT USAGE names the fields or words that would do.
absl::Status SetField(common::v1::AdapterPolicy& policy, const std::string& assignment);

// Every field: how it is written, what it does and its default, in the order of the message.
const std::vector<Setting>& PolicySettings();

// Every field with the value that counts, defaults included, in the order of the message.
struct PolicyLine {
  std::string field, value;
  bool is_default = false;
};
absl::StatusOr<std::vector<PolicyLine>> DescribePolicy(const common::v1::AdapterPolicy& policy);

// The pool of `adapter` that is meant where none is named: the one that follows what is published,
// or the only one. USAGE names them where several may be meant, since order of names is no choice.
absl::StatusOr<std::string> OnlyPool(const std::string& adapter,
                                     const common::v1::AdapterPolicy& policy);

// NOT_FOUND UNKNOWN_POOL unless the policy of `adapter` names the pool.
absl::Status CheckPool(const std::string& adapter, const common::v1::AdapterPolicy& policy,
                       const std::string& pool);

}  // namespace lorry::cli
