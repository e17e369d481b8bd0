#include "services/adapter_store/rpc/messages.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "lib/base/error.h"
#include "lib/fleet/policy.h"
#include "lib/fleet/selector.h"
#include "lib/peft/image.h"
#include "lib/rpc/fleet_messages.h"
#include "lib/rpc/policy_messages.h"
#include "lib/transfer/relay_address.h"

namespace lorry::store {
namespace {

constexpr uint32_t kPageDefault = 100;
// Configs have a few KB: a full page stays below gRPC's 4 MiB.
constexpr uint32_t kPageMax = 1000;

absl::Status Invalid(std::string message) {
  return Error(absl::StatusCode::kInvalidArgument, "ARGUMENT_INVALID", message);
}

}  // namespace

common::v1::Version ToProto(const Version& version) {
  common::v1::Version out;
  *out.mutable_ref() = rpc::ToProto(version.key);
  out.set_digest(version.digest.value);
  out.set_image_bytes(version.image_bytes);
  out.set_config_json(version.config_json);
  *out.mutable_traits() = rpc::ToProto(version.traits);
  out.set_stored_at_ms(version.stored_at_ms);
  out.set_revision(version.revision);
  out.set_keep(version.keep);
  return out;
}

v1::Adapter ToProto(const Adapter& adapter, const std::vector<Run>& runs) {
  v1::Adapter out;
  out.set_name(adapter.name.value);
  // Written by SetAdapter from this message: it parses.
  out.mutable_policy()->ParseFromString(adapter.policy.encoded);
  out.set_generation(adapter.generation);
  out.set_current_run(adapter.current_run.value);
  out.set_stored_bytes(adapter.stored_bytes);
  out.set_versions(adapter.versions);
  out.set_archived(adapter.archived);
  for (const Run& run : runs) {
    v1::Run& to = *out.add_runs();
    to.set_number(run.number.value);
    if (run.resumed_from.has_value()) *to.mutable_resumed_from() = rpc::ToProto(*run.resumed_from);
    if (run.newest.has_value()) to.set_newest(*run.newest);
    to.set_opened_at_ms(run.opened_at_ms);
  }
  return out;
}

v1::Alias ToProto(const Alias& alias) {
  v1::Alias out;
  out.set_adapter(alias.adapter.value);
  out.set_name(alias.name.value);
  if (alias.version.has_value()) *out.mutable_version() = rpc::ToProto(*alias.version);
  out.set_generation(alias.generation);
  return out;
}

v1::Retention ToProto(const Retention& retention) {
  v1::Retention out;
  out.set_store_keep(retention.store_keep);
  out.set_newest(retention.newest);
  out.set_aliased(retention.aliased);
  out.set_held(retention.held);
  out.set_kept(retention.kept);
  out.set_leaving(retention.leaving);
  return out;
}

v1::Range ToProto(const transfer::Range& range) {
  v1::Range out;
  out.set_offset(range.offset);
  out.set_length(range.length);
  return out;
}

v1::GetUploadResponse ToProto(const Standing& standing) {
  v1::GetUploadResponse out;
  switch (standing.upload.state) {
    case UploadState::kOpen:
      out.set_state(standing.checking ? v1::GetUploadResponse::STATE_CHECKING
                                      : v1::GetUploadResponse::STATE_OPEN);
      break;
    case UploadState::kStored:
      out.set_state(v1::GetUploadResponse::STATE_STORED);
      break;
    case UploadState::kDead:
      out.set_state(v1::GetUploadResponse::STATE_DEAD);
      out.set_reason(ReasonOf(standing.upload.why));
      break;
  }
  for (const transfer::Range& range : standing.missing) *out.add_missing() = ToProto(range);
  for (const transfer::Range& range : standing.in_flight) *out.add_in_flight() = ToProto(range);
  if (standing.version.has_value()) *out.mutable_version() = ToProto(*standing.version);
  return out;
}

absl::StatusOr<Policy> PolicyOf(const common::v1::AdapterPolicy& policy) {
  LORRY_ASSIGN_OR_RETURN(const fleet::AdapterPolicy plain, rpc::PolicyFromProto(policy));
  LORRY_RETURN_IF_ERROR(rpc::CheckMaySet(plain));
  Policy out{.encoded = policy.SerializeAsString(),
             .quota_bytes = plain.quota_bytes,
             .max_tensor_norm = static_cast<double>(plain.norm_limit),
             .quota_versions = plain.quota_versions,
             .store_keep = plain.store_keep};
  if (plain.no_adapter == fleet::NoAdapterMode::kLatest) {
    for (const auto& [pool, source] : plain.pools) out.default_of.push_back(pool.value);
  }
  return out;
}

absl::StatusOr<OpenRunArgs> FromProto(const v1::OpenRunRequest& request) {
  LORRY_RETURN_IF_ERROR(CheckAdapterName(request.adapter()));
  OpenRunArgs args{.adapter = AdapterName(request.adapter()), .request_id = request.request_id()};
  if (request.has_expected_run()) args.expected_run = request.expected_run();
  if (!request.has_resume_from()) return args;
  LORRY_ASSIGN_OR_RETURN(args.resume_from, rpc::FromProto(request.resume_from()));
  if (args.resume_from->adapter != args.adapter) {
    return Invalid("resume_from must be a version of the same adapter");
  }
  return args;
}

absl::StatusOr<BeginRequest> FromProto(const v1::BeginUploadRequest& request) {
  LORRY_ASSIGN_OR_RETURN(VersionKey key, rpc::FromProto(request.version()));
  if (key.run.value == 0) {
    return Invalid("a publisher must name its run: that is how a replaced one is found out");
  }
  if (request.header().size() > peft::kHeaderBytesMax) {
    return Invalid(absl::StrCat("the header has ", request.header().size(), " bytes; at most ",
                                peft::kHeaderBytesMax, " are taken"));
  }
  if (request.image_bytes() > peft::kImageBytesMax) {
    return Invalid(absl::StrCat("image_bytes is ", request.image_bytes(), "; at most ",
                                peft::kImageBytesMax, " are taken"));
  }
  return BeginRequest{.key = std::move(key),
                      .attempt = request.attempt(),
                      .header = request.header(),
                      .config_json = request.config_json(),
                      .image_bytes = request.image_bytes(),
                      .expected_digest = Digest{request.expected_digest()},
                      .keep = request.keep()};
}

absl::StatusOr<AliasName> AliasOf(const std::string& name) {
  LORRY_RETURN_IF_ERROR(fleet::CheckAliasName(name));
  return AliasName(name);
}

absl::StatusOr<OfferedRelay> RelayOf(const v1::JoinFanOutRequest& request) {
  OfferedRelay relay{.address = request.relay(), .key = {}};
  if (absl::Status parsed = transfer::ParseRelayAddress(relay.address).status(); !parsed.ok())
    return Invalid(std::string(parsed.message()));
  if (request.ticket_key().size() != relay.key.size())
    return Invalid(absl::StrCat("ticket_key has ", request.ticket_key().size(), " bytes; it has ",
                                relay.key.size()));
  std::memcpy(relay.key.data(), request.ticket_key().data(), relay.key.size());
  return relay;
}

size_t PageSize(uint32_t asked) { return std::min(asked == 0 ? kPageDefault : asked, kPageMax); }

}  // namespace lorry::store
