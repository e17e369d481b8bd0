// Between lib/fleet's plain types and the messages of lorry.sync.v1 and lorry.common.v1. Pure
// functions, any thread.
//
// From* is where bytes of the network become values: names are checked, enumerations are known,
// lists are bounded; what does not pass is INVALID_ARGUMENT and never reaches a machine.
#pragma once

#include "absl/status/statusor.h"
#include "lib/fleet/desired.h"
#include "lib/fleet/observed.h"
#include "lorry/common/v1/adapter.pb.h"
#include "lorry/sync/v1/fleet.pb.h"

namespace lorry::rpc {

common::v1::VersionRef ToProto(const VersionKey& key);
absl::StatusOr<VersionKey> FromProto(const common::v1::VersionRef& ref);

common::v1::VersionTraits ToProto(const fleet::VersionTraits& traits);
absl::StatusOr<fleet::VersionTraits> FromProto(const common::v1::VersionTraits& traits);

lorry::sync::v1::Term ToProto(const Term& term);
Term FromProto(const lorry::sync::v1::Term& term);

lorry::sync::v1::EngineKind ToProto(fleet::EngineKind kind);
lorry::sync::v1::ResidencyState ToProto(fleet::ResidencyState state);

lorry::sync::v1::Desired ToProto(const fleet::Desired& desired);
absl::StatusOr<fleet::Desired> FromProto(const lorry::sync::v1::Desired& desired);

lorry::sync::v1::Observed ToProto(const fleet::Observed& observed);
absl::StatusOr<fleet::Observed> FromProto(const lorry::sync::v1::Observed& observed);

}  // namespace lorry::rpc
