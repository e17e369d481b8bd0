#include "services/adapter_store/rpc/store_service.h"

#include <algorithm>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lib/base/error.h"
#include "lib/rpc/fleet_messages.h"
#include "services/adapter_store/rpc/messages.h"

namespace lorry::store {
namespace {

using rpc::Call;
using rpc::Role;

// A commit that waits for its check answers this long before the caller's deadline, so that the
// answer still arrives, and after kCommitWaitMs in any case: a caller behind a proxy that cuts off
// quiet calls, or that the network forgot, is found out, and asks again.
constexpr Tick kAnswerMarginMs = 200;
constexpr Tick kCommitWaitMs = 20'000;

Principal PrincipalOf(const Call& call) {
  return {.name = call.caller.name, .is_operator = call.caller.roles.Has(Role::kOperator)};
}

absl::StatusOr<AdapterName> AdapterOf(const std::string& name) {
  LORRY_RETURN_IF_ERROR(CheckAdapterName(name));
  return AdapterName(name);
}

}  // namespace

void StoreService::SetAddresses(std::vector<std::string> addresses) {
  MutexLock lock(mutex_);
  addresses_ = std::move(addresses);
}

absl::StatusOr<std::vector<std::string>> StoreService::AddressesFor(
    const grpc::ServerContextBase& caller) const {
  std::vector<std::string> addresses;
  {
    MutexLock lock(mutex_);
    addresses = addresses_;
  }
  if (addresses.empty()) {
    return Error(absl::StatusCode::kUnavailable, "",
                 "the store is starting; try again in a moment");
  }
  const grpc::string_ref dialled = caller.ExperimentalGetAuthority();
  for (std::string& address : addresses) {
    if (address == kWhereTheCallerDialled) address.append(dialled.data(), dialled.size());
  }
  return addresses;
}

// An upload's id names no adapter, so the gate cannot judge a token that is limited to some.
absl::Status StoreService::CheckAdapterOf(const UploadId& id, const Call& call) {
  if (call.caller.adapters.empty()) return absl::OkStatus();
  LORRY_ASSIGN_OR_RETURN(const Upload upload, parts_.catalog.GetUpload(id));
  if (call.caller.MayTouch(upload.key.adapter.value)) return absl::OkStatus();
  return Error(
      absl::StatusCode::kPermissionDenied, "ADAPTER_DENIED",
      absl::StrCat(call.caller.name, " may touch only ", absl::StrJoin(call.caller.adapters, ", "),
                   "; upload ", id.value, " is one of ", upload.key.adapter.value));
}

absl::StatusOr<v1::Adapter> StoreService::Describe(const Adapter& adapter) {
  LORRY_ASSIGN_OR_RETURN(const std::vector<Run> runs, parts_.catalog.ListRuns(adapter.name));
  return ToProto(adapter, runs);
}

grpc::Status StoreService::OpenRun(grpc::ServerContext* context, const v1::OpenRunRequest* request,
                                   v1::OpenRunResponse* response) {
  const auto serve = [&](const Call& call) -> absl::Status {
    LORRY_ASSIGN_OR_RETURN(OpenRunArgs args, FromProto(*request));
    args.principal = PrincipalOf(call);
    LORRY_ASSIGN_OR_RETURN(const Run run, parts_.catalog.OpenRun(args));
    response->set_run(run.number.value);
    return absl::OkStatus();
  };
  return parts_.gate.Serve(*context, "OpenRun", Role::kPublisher, serve,
                           {.adapter = request->adapter()});
}

grpc::Status StoreService::BeginUpload(grpc::ServerContext* context,
                                       const v1::BeginUploadRequest* request,
                                       v1::BeginUploadResponse* response) {
  const auto serve = [&](const Call& call) -> absl::Status {
    LORRY_ASSIGN_OR_RETURN(BeginRequest begin, FromProto(*request));
    begin.principal = PrincipalOf(call);
    LORRY_ASSIGN_OR_RETURN(const std::vector<std::string> addresses, AddressesFor(*context));
    LORRY_ASSIGN_OR_RETURN(const BeginReply reply, parts_.uploads.Begin(begin));
    if (reply.stored.has_value()) {
      *response->mutable_stored() = ToProto(*reply.stored);
      return absl::OkStatus();
    }
    LORRY_ASSIGN_OR_RETURN(*response->mutable_ticket(),
                           parts_.transfers.PutTicket(reply.upload, call.caller.name));
    response->set_upload_id(reply.upload.id.value);
    for (const transfer::Range& range : reply.missing) *response->add_missing() = ToProto(range);
    for (const transfer::Range& range : reply.in_flight) {
      *response->add_in_flight() = ToProto(range);
    }
    for (const std::string& address : addresses) response->add_addresses(address);
    response->set_idle_deadline_ms(parts_.upload_idle_deadline_ms);
    return absl::OkStatus();
  };
  return parts_.gate.Serve(*context, "BeginUpload", Role::kPublisher, serve,
                           {.adapter = request->version().adapter()});
}

grpc::Status StoreService::GetUpload(grpc::ServerContext* context,
                                     const v1::GetUploadRequest* request,
                                     v1::GetUploadResponse* response) {
  const auto serve = [&](const Call& call) -> absl::Status {
    const UploadId id(request->upload_id());
    LORRY_RETURN_IF_ERROR(CheckAdapterOf(id, call));
    LORRY_ASSIGN_OR_RETURN(const Standing standing, parts_.uploads.Get(id, PrincipalOf(call)));
    *response = ToProto(standing);
    return absl::OkStatus();
  };
  return parts_.gate.Serve(*context, "GetUpload", Role::kPublisher, serve,
                           {.adapter = rpc::kOfCaller});
}

grpc::Status StoreService::AbortUpload(grpc::ServerContext* context,
                                       const v1::AbortUploadRequest* request,
                                       v1::AbortUploadResponse*) {
  const auto serve = [&](const Call& call) -> absl::Status {
    const UploadId id(request->upload_id());
    LORRY_RETURN_IF_ERROR(CheckAdapterOf(id, call));
    return parts_.uploads.Abort(id, PrincipalOf(call));
  };
  return parts_.gate.Serve(*context, "AbortUpload", Role::kPublisher, serve,
                           {.adapter = rpc::kOfCaller});
}

grpc::Status StoreService::CommitUpload(grpc::ServerContext* context,
                                        const v1::CommitUploadRequest* request,
                                        v1::CommitUploadResponse* response) {
  const auto serve = [&](const Call& call) -> absl::Status {
    const UploadId id(request->upload_id());
    LORRY_RETURN_IF_ERROR(CheckAdapterOf(id, call));
    const Tick deadline =
        std::min(call.deadline - kAnswerMarginMs, SteadyClock().Now() + kCommitWaitMs);
    LORRY_ASSIGN_OR_RETURN(const Version version,
                           parts_.uploads.Commit(id, deadline, PrincipalOf(call)));
    *response->mutable_version() = ToProto(version);
    return absl::OkStatus();
  };
  return parts_.gate.Serve(*context, "CommitUpload", Role::kPublisher, serve,
                           {.adapter = rpc::kOfCaller, .effort = rpc::Effort::kWaits});
}

grpc::Status StoreService::OpenFetch(grpc::ServerContext* context,
                                     const v1::OpenFetchRequest* request,
                                     v1::OpenFetchResponse* response) {
  const auto serve = [&](const Call& call) -> absl::Status {
    LORRY_ASSIGN_OR_RETURN(const VersionKey key, rpc::FromProto(request->version()));
    LORRY_ASSIGN_OR_RETURN(const std::vector<std::string> addresses, AddressesFor(*context));
    LORRY_ASSIGN_OR_RETURN(Manifest manifest, parts_.transfers.OpenFetch(key, call.caller.name));
    *response->mutable_version() = ToProto(manifest.version);
    response->set_leaves(std::move(manifest.leaves));
    response->set_ticket(std::move(manifest.ticket));
    for (const std::string& address : addresses) response->add_addresses(address);
    return absl::OkStatus();
  };
  return parts_.gate.Serve(*context, "OpenFetch", Role::kReader, serve,
                           {.adapter = request->version().adapter()});
}

grpc::Status StoreService::JoinFanOut(grpc::ServerContext* context,
                                      const v1::JoinFanOutRequest* request,
                                      v1::JoinFanOutResponse* response) {
  const auto serve = [&](const Call&) -> absl::Status {
    LORRY_ASSIGN_OR_RETURN(const VersionKey key, rpc::FromProto(request->version()));
    LORRY_ASSIGN_OR_RETURN(const OfferedRelay relay, RelayOf(*request));
    LORRY_ASSIGN_OR_RETURN(const std::vector<transfer::Source> sources,
                           parts_.transfers.JoinFanOut(key, relay));
    for (const transfer::Source& source : sources) {
      v1::JoinFanOutResponse::Source& out = *response->add_sources();
      out.set_relay(source.address);
      out.set_ticket(source.ticket);
    }
    return absl::OkStatus();
  };
  return parts_.gate.Serve(*context, "JoinFanOut", Role::kEngine, serve,
                           {.adapter = request->version().adapter()});
}

grpc::ServerWriteReactor<v1::FollowUploadsResponse>* StoreService::FollowUploads(
    grpc::CallbackServerContext* context, const v1::FollowUploadsRequest* request) {
  const auto terms = [&]() -> absl::StatusOr<FollowSession::Terms> {
    FollowSession::Terms out;
    LORRY_ASSIGN_OR_RETURN(out.adapters, FollowedAdapters(*request));
    out.relays = request->relays();
    LORRY_ASSIGN_OR_RETURN(out.addresses, AddressesFor(*context));
    return out;
  };
  return rpc::StartStream(parts_.gate, *context, Role::kEngine,
                          std::make_shared<FollowSession>(parts_.upload_hub, terms()));
}

grpc::ServerWriteReactor<v1::WatchResponse>* StoreService::Watch(
    grpc::CallbackServerContext* context, const v1::WatchRequest* request) {
  return rpc::StartStream(parts_.gate, *context, Role::kReader,
                          std::make_shared<WatchSession>(parts_.hub, *request));
}

grpc::Status StoreService::GetRevision(grpc::ServerContext* context, const v1::GetRevisionRequest*,
                                       v1::GetRevisionResponse* response) {
  const auto serve = [&](const Call&) -> absl::Status {
    LORRY_ASSIGN_OR_RETURN(const uint64_t revision, parts_.catalog.Revision());
    response->set_revision(revision);
    response->set_store(parts_.catalog.instance());
    response->set_lorry_version(parts_.lorry_version);
    return absl::OkStatus();
  };
  return parts_.gate.Serve(*context, "GetRevision", Role::kReader, serve);
}

grpc::Status StoreService::GetVersion(grpc::ServerContext* context,
                                      const v1::GetVersionRequest* request,
                                      v1::GetVersionResponse* response) {
  const auto serve = [&](const Call&) -> absl::Status {
    LORRY_ASSIGN_OR_RETURN(const VersionKey key, rpc::FromProto(request->version()));
    LORRY_ASSIGN_OR_RETURN(const Version version, parts_.catalog.GetVersion(key));
    LORRY_ASSIGN_OR_RETURN(const auto holders, parts_.catalog.HoldersOf(version.key));
    *response->mutable_version() = ToProto(version);
    for (const std::string& holder : holders) response->add_holders(holder);
    return absl::OkStatus();
  };
  return parts_.gate.Serve(*context, "GetVersion", Role::kReader, serve,
                           {.adapter = request->version().adapter()});
}

grpc::Status StoreService::ListVersions(grpc::ServerContext* context,
                                        const v1::ListVersionsRequest* request,
                                        v1::ListVersionsResponse* response) {
  const auto serve = [&](const Call&) -> absl::Status {
    LORRY_ASSIGN_OR_RETURN(const AdapterName adapter, AdapterOf(request->adapter()));
    LORRY_ASSIGN_OR_RETURN(
        const Page page,
        parts_.catalog.ListVersions(adapter, RunId(request->run()), PageSize(request->page_size()),
                                    request->page_token()));
    for (const Version& version : page.versions) *response->add_versions() = ToProto(version);
    response->set_next_page_token(page.next);
    return absl::OkStatus();
  };
  return parts_.gate.Serve(*context, "ListVersions", Role::kReader, serve,
                           {.adapter = request->adapter()});
}

grpc::Status StoreService::DeleteVersion(grpc::ServerContext* context,
                                         const v1::DeleteVersionRequest* request,
                                         v1::DeleteVersionResponse*) {
  const auto serve = [&](const Call&) -> absl::Status {
    LORRY_ASSIGN_OR_RETURN(const VersionKey key, rpc::FromProto(request->version()));
    if (key.run.value == 0) {
      return Error(absl::StatusCode::kInvalidArgument, "ARGUMENT_INVALID",
                   "a delete must name the run: the current one may have just changed");
    }
    return parts_.catalog.DeleteVersion(key);
  };
  return parts_.gate.Serve(*context, "DeleteVersion", Role::kOperator, serve,
                           {.adapter = request->version().adapter()});
}

grpc::Status StoreService::SetAdapter(grpc::ServerContext* context,
                                      const v1::SetAdapterRequest* request,
                                      v1::SetAdapterResponse* response) {
  const auto serve = [&](const Call&) -> absl::Status {
    LORRY_ASSIGN_OR_RETURN(const AdapterName name, AdapterOf(request->name()));
    LORRY_ASSIGN_OR_RETURN(Policy policy, PolicyOf(request->policy()));
    const std::optional<uint64_t> expected = request->has_expected_generation()
                                                 ? std::optional(request->expected_generation())
                                                 : std::nullopt;
    LORRY_ASSIGN_OR_RETURN(const Adapter adapter,
                           parts_.catalog.SetAdapter(name, std::move(policy), expected));
    LORRY_ASSIGN_OR_RETURN(*response->mutable_adapter(), Describe(adapter));
    return absl::OkStatus();
  };
  return parts_.gate.Serve(*context, "SetAdapter", Role::kPublisher, serve,
                           {.adapter = request->name()});
}

grpc::Status StoreService::GetAdapter(grpc::ServerContext* context,
                                      const v1::GetAdapterRequest* request,
                                      v1::GetAdapterResponse* response) {
  const auto serve = [&](const Call&) -> absl::Status {
    LORRY_ASSIGN_OR_RETURN(const AdapterName name, AdapterOf(request->name()));
    LORRY_ASSIGN_OR_RETURN(const Adapter adapter, parts_.catalog.GetAdapter(name));
    LORRY_ASSIGN_OR_RETURN(*response->mutable_adapter(), Describe(adapter));
    LORRY_ASSIGN_OR_RETURN(const std::vector<Alias> aliases, parts_.catalog.ListAliases(name));
    for (const Alias& alias : aliases) *response->add_aliases() = ToProto(alias);
    LORRY_ASSIGN_OR_RETURN(const Retention retention, parts_.catalog.RetentionOf(adapter));
    *response->mutable_retention() = ToProto(retention);
    return absl::OkStatus();
  };
  return parts_.gate.Serve(*context, "GetAdapter", Role::kReader, serve,
                           {.adapter = request->name()});
}

grpc::Status StoreService::ListAdapters(grpc::ServerContext* context,
                                        const v1::ListAdaptersRequest* request,
                                        v1::ListAdaptersResponse* response) {
  const auto serve = [&](const Call&) -> absl::Status {
    const size_t limit = PageSize(request->page_size());
    LORRY_ASSIGN_OR_RETURN(const std::vector<Adapter> adapters,
                           parts_.catalog.ListAdapters(request->page_token(), limit));
    for (const Adapter& adapter : adapters) {
      LORRY_ASSIGN_OR_RETURN(*response->add_adapters(), Describe(adapter));
    }
    if (adapters.size() == limit) response->set_next_page_token(adapters.back().name.value);
    return absl::OkStatus();
  };
  return parts_.gate.Serve(*context, "ListAdapters", Role::kReader, serve);
}

grpc::Status StoreService::ArchiveAdapter(grpc::ServerContext* context,
                                          const v1::ArchiveAdapterRequest* request,
                                          v1::ArchiveAdapterResponse* response) {
  const auto serve = [&](const Call&) -> absl::Status {
    LORRY_ASSIGN_OR_RETURN(const AdapterName name, AdapterOf(request->name()));
    LORRY_ASSIGN_OR_RETURN(const Adapter adapter,
                           parts_.catalog.ArchiveAdapter(name, request->archived()));
    LORRY_ASSIGN_OR_RETURN(*response->mutable_adapter(), Describe(adapter));
    return absl::OkStatus();
  };
  return parts_.gate.Serve(*context, "ArchiveAdapter", Role::kOperator, serve,
                           {.adapter = request->name()});
}

grpc::Status StoreService::DeleteAdapter(grpc::ServerContext* context,
                                         const v1::DeleteAdapterRequest* request,
                                         v1::DeleteAdapterResponse* response) {
  const auto serve = [&](const Call&) -> absl::Status {
    LORRY_ASSIGN_OR_RETURN(const AdapterName name, AdapterOf(request->name()));
    LORRY_ASSIGN_OR_RETURN(const DeletedAdapter deleted,
                           parts_.catalog.DeleteAdapter(name, request->with_versions()));
    response->set_versions(deleted.versions);
    response->set_bytes(deleted.bytes);
    return absl::OkStatus();
  };
  return parts_.gate.Serve(*context, "DeleteAdapter", Role::kOperator, serve,
                           {.adapter = request->name()});
}

grpc::Status StoreService::SetAlias(grpc::ServerContext* context,
                                    const v1::SetAliasRequest* request,
                                    v1::SetAliasResponse* response) {
  const auto serve = [&](const Call&) -> absl::Status {
    LORRY_ASSIGN_OR_RETURN(const AdapterName adapter, AdapterOf(request->adapter()));
    LORRY_ASSIGN_OR_RETURN(const AliasName name, AliasOf(request->alias()));
    std::optional<VersionKey> version;
    if (request->has_version()) {
      LORRY_ASSIGN_OR_RETURN(version, rpc::FromProto(request->version()));
    }
    const std::optional<uint64_t> expected = request->has_expected_generation()
                                                 ? std::optional(request->expected_generation())
                                                 : std::nullopt;
    LORRY_ASSIGN_OR_RETURN(const Alias alias,
                           parts_.catalog.SetAlias(adapter, name, version, expected));
    *response->mutable_alias() = ToProto(alias);
    return absl::OkStatus();
  };
  return parts_.gate.Serve(*context, "SetAlias", Role::kPublisher, serve,
                           {.adapter = request->adapter()});
}

grpc::Status StoreService::SetHolds(grpc::ServerContext* context,
                                    const v1::SetHoldsRequest* request,
                                    v1::SetHoldsResponse* response) {
  const auto serve = [&](const Call&) -> absl::Status {
    std::vector<VersionKey> versions;
    for (const common::v1::VersionRef& ref : request->versions()) {
      LORRY_ASSIGN_OR_RETURN(VersionKey key, rpc::FromProto(ref));
      versions.push_back(std::move(key));
    }
    LORRY_ASSIGN_OR_RETURN(const std::vector<VersionKey> missing,
                           parts_.catalog.SetHolds(request->holder(),
                                                   {.incarnation = request->incarnation(),
                                                    .revision = request->revision()},
                                                   std::move(versions)));
    for (const VersionKey& key : missing) *response->add_missing() = rpc::ToProto(key);
    return absl::OkStatus();
  };
  return parts_.gate.Serve(*context, "SetHolds", Role::kOperator, serve);
}

}  // namespace lorry::store
