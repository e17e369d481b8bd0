// Between the store's records and lorry.store.v1. Pure functions, any thread.
#pragma once

#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/transfer/ranges.h"
#include "lorry/store/v1/store.pb.h"
#include "services/adapter_store/catalog/catalog.h"
#include "services/adapter_store/images/fan_out.h"
#include "services/adapter_store/images/uploads.h"

namespace lorry::store {

common::v1::Version ToProto(const Version& version);
v1::Adapter ToProto(const Adapter& adapter, const std::vector<Run>& runs);
v1::Alias ToProto(const Alias& alias);
v1::Retention ToProto(const Retention& retention);
v1::Range ToProto(const transfer::Range& range);
v1::GetUploadResponse ToProto(const Standing& standing);

// POLICY_INVALID says what to change.
absl::StatusOr<Policy> PolicyOf(const common::v1::AdapterPolicy& policy);

// ARGUMENT_INVALID or NAME_INVALID where a field is missing or out of its range.
absl::StatusOr<OpenRunArgs> FromProto(const v1::OpenRunRequest& request);
absl::StatusOr<BeginRequest> FromProto(const v1::BeginUploadRequest& request);
absl::StatusOr<AliasName> AliasOf(const std::string& name);
absl::StatusOr<OfferedRelay> RelayOf(const v1::JoinFanOutRequest& request);

// 0 asks for 100; at most 1000.
size_t PageSize(uint32_t asked);

}  // namespace lorry::store
