#include "services/sync_orchestrator/rpc/sync_service.h"

#include <google/protobuf/util/message_differencer.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "lib/base/error.h"
#include "lib/fleet/engine_name.h"
#include "lib/fleet/selector.h"
#include "lib/rpc/fleet_messages.h"
#include "lib/runtime/awaited.h"
#include "services/sync_orchestrator/rpc/sync_streams.h"

namespace lorry::sync {
namespace {

// A watcher of the whole picture is for people: five times a second is more than they can read.
constexpr int64_t kRefreshMs = 200;
// So many times as long as a picture took, which of thousands of engines is a second: watchers get a
// tenth of a core, decisions the rest.
constexpr int64_t kRestsFor = 9;
constexpr int64_t kRefreshDeadlineMs = 2'000;
// As the store's: room for a UUID and a word before it.
constexpr size_t kRequestIdBytesMax = 64;

absl::StatusOr<std::string> PoolOf(grpc::ByteBuffer bytes) {
  v1::WatchRequest request;
  grpc::ProtoBufferReader reader(&bytes);
  if (request.ParseFromZeroCopyStream(&reader)) return request.pool();
  return Error(absl::StatusCode::kInvalidArgument, "MESSAGE_INVALID", "no WatchRequest");
}

grpc::ByteBuffer BytesOf(v1::GetStatusResponse status) {
  v1::WatchResponse message;
  *message.mutable_status() = std::move(status);
  const grpc::Slice bytes(message.SerializeAsString());
  return grpc::ByteBuffer(&bytes, 1);
}

}  // namespace

SyncService::SyncService(rpc::Gate& gate, Orchestrator& orchestrator, StoreLink& store,
                         const Clock& clock, std::string cluster, std::string version)
    : gate_(gate),
      orchestrator_(orchestrator),
      store_(store),
      clock_(clock),
      cluster_(std::move(cluster)),
      version_(std::move(version)),
      loop_("status") {
  loop_.PostAnswer([this] { Refresh(); });
}

SyncService::~SyncService() { loop_.Stop(); }

absl::StatusOr<VersionKey> SyncService::CompleteVersion(const common::v1::VersionRef& ref) const {
  LORRY_ASSIGN_OR_RETURN(VersionKey key, rpc::FromProto(ref));
  if (key.run.value != 0) return key;
  const std::optional<AdapterInfo> adapter = store_.Find(key.adapter);
  if (!adapter.has_value()) {
    return Error(absl::StatusCode::kNotFound, "UNKNOWN_ADAPTER",
                 absl::StrCat("the store has no adapter \"", key.adapter.value,
                              "\"; `lorry adapters` lists those that it has"));
  }
  key.run = adapter->current_run;
  return key;
}

PoolName SyncService::CompletePool(const std::string& pool, const AdapterName& adapter) const {
  if (!pool.empty()) return PoolName(pool);
  const std::optional<AdapterInfo> info = store_.Find(adapter);
  if (!info.has_value() || info->policy.pools.empty()) return PoolName("rollout");
  // The pool that follows what is published, where the policy has several.
  for (const auto& [name, source] : info->policy.pools) {
    if (source.kind == fleet::PoolSource::Kind::kPublished) return name;
  }
  return info->policy.pools.begin()->first;
}

// Asks, and once more where what was asked for is unknown and may only not have been heard of yet.
template <typename Question>
absl::StatusOr<Reply> SyncService::AskUntilHeard(Tick deadline, Question ask) {
  absl::StatusOr<Reply> reply = ask();
  if (!absl::IsNotFound(reply.status())) return reply;
  const auto caught_up = std::make_shared<runtime::Awaited<absl::Status>>();
  store_.AskToCatchUp([caught_up](const absl::Status& status) { caught_up->Set(status); });
  const absl::Status status = caught_up->Take(deadline - clock_.Now())
                                  .value_or(absl::DeadlineExceededError("no time was left"));
  if (!status.ok()) return InDoubt(reply.status(), status);
  return ask();
}

grpc::ServerBidiReactor<v1::AttachRequest, v1::AttachResponse>* SyncService::Attach(
    grpc::CallbackServerContext* context) {
  return rpc::StartStream(gate_, *context, rpc::Role::kEngine,
                          std::make_shared<AttachStream>(*this));
}

grpc::ServerWriteReactor<v1::WatchSyncResponse>* SyncService::WatchSync(
    grpc::CallbackServerContext* context, const v1::WatchSyncRequest* request) {
  return rpc::StartStream(gate_, *context, rpc::Role::kReader,
                          std::make_shared<WatchSyncStream>(*this, *request),
                          request->version().adapter());
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* SyncService::Watch(grpc::CallbackServerContext* context,
                                                               const grpc::ByteBuffer* request) {
  return rpc::StartStream(gate_, *context, rpc::Role::kReader,
                          std::make_shared<WatchStream>(*this, PoolOf(*request)));
}

void SyncService::AddWatcher(std::weak_ptr<WatchStream> watcher) {
  MutexLock lock(mutex_);
  watchers_.push_back(std::move(watcher));
}

void SyncService::Refresh() {
  const Tick began = clock_.Now();
  ShowWatchers();
  const int64_t spent_ms = clock_.Now() - began;
  loop_.After(std::max(kRefreshMs, kRestsFor * spent_ms), [this] { Refresh(); });
}

void SyncService::ShowWatchers() {
  std::vector<std::shared_ptr<WatchStream>> watchers;
  {
    MutexLock lock(mutex_);
    std::erase_if(watchers_, [](const auto& weak) { return weak.expired(); });
    for (const auto& weak : watchers_) {
      if (auto stream = weak.lock()) watchers.push_back(std::move(stream));
    }
  }
  if (watchers.empty()) return;
  const auto status = orchestrator_.GetStatus(clock_.Now() + kRefreshDeadlineMs);
  if (!status.ok()) return;
  std::map<std::string, grpc::ByteBuffer> shown;  // by pool; a copy shares the bytes
  for (const std::shared_ptr<WatchStream>& stream : watchers) {
    const auto [bytes, is_new] = shown.try_emplace(stream->pool());
    if (is_new) bytes->second = BytesOf(Describe(**status, stream->pool(), ""));
    (void)stream->Send(bytes->second);
  }
}

absl::StatusOr<v1::GetStatusResponse> SyncService::StatusNow(const std::string& pool,
                                                             const std::string& adapter,
                                                             Tick deadline) {
  LORRY_ASSIGN_OR_RETURN(const auto status, orchestrator_.GetStatus(deadline));
  return Describe(*status, pool, adapter);
}

v1::GetStatusResponse SyncService::Describe(const Status& status, const std::string& pool,
                                            const std::string& adapter) const {
  v1::GetStatusResponse out = ToProto(status, store_.Newest(), pool, adapter, orchestrator_.Now());
  out.set_version(version_);
  out.set_store_connected(store_.connected());
  const std::string why = store_.WhyNotHeld();
  for (v1::PoolStatus& shown : *out.mutable_pools()) {
    const v1::WatchSyncResponse& running = shown.running();
    if (running.reason() == "HOLD_PENDING" && running.detail().empty())
      shown.mutable_running()->set_detail(why);
  }
  return out;
}

grpc::Status SyncService::GetStatus(grpc::ServerContext* context,
                                    const v1::GetStatusRequest* request,
                                    v1::GetStatusResponse* response) {
  return gate_.Serve(*context, "GetStatus", rpc::Role::kReader,
                     [&](const rpc::Call& call) -> absl::Status {
                       LORRY_ASSIGN_OR_RETURN(
                           *response,
                           StatusNow(request->pool(), request->adapter(), call.deadline));
                       return absl::OkStatus();
                     },
                     {.adapter = request->adapter()});
}

grpc::Status SyncService::Resolve(grpc::ServerContext* context, const v1::ResolveRequest* request,
                                  v1::ResolveResponse* response) {
  const auto selector = fleet::ParseSelector(request->selector());
  const std::string adapter = selector.ok() ? selector->adapter.value : "";
  return gate_.Serve(
      *context, "Resolve", rpc::Role::kPublisher,
      [&](const rpc::Call& call) -> absl::Status {
        LORRY_RETURN_IF_ERROR(CheckName("the holder", request->holder()));
        LORRY_RETURN_IF_ERROR(selector.status());
        const auto ask = [&] {
          return orchestrator_.Ask(
              LeaseAsked{.selector = *selector,
                         .pool = CompletePool(request->pool(), selector->adapter),
                         .holder = request->holder(),
                         .ttl_ms = request->ttl_ms()},
              call.deadline);
        };
        LORRY_ASSIGN_OR_RETURN(const Reply reply, AskUntilHeard(call.deadline, ask));
        const VersionInfo& version = reply.resolved.version;
        response->set_loaded(reply.resolved.loaded);
        response->set_members(reply.resolved.members);
        response->set_released(reply.resolved.released);
        if (version.key.adapter.empty()) return absl::OkStatus();  // nothing was leased
        *response->mutable_version() = rpc::ToProto(version.key);
        response->set_digest(version.digest.value);
        response->set_ttl_ms(request->ttl_ms());
        for (const fleet::EngineKind kind :
             {fleet::EngineKind::kSglang, fleet::EngineKind::kVllm}) {
          v1::EngineNameOfKind& name = *response->add_engine_names();
          name.set_kind(rpc::ToProto(kind));
          name.set_engine_name(fleet::MakeEngineName(version.key, version.digest,
                                                     fleet::RenderFor(kind, version.traits))
                                   .value);
        }
        return absl::OkStatus();
      },
      {.adapter = adapter});
}

grpc::Status SyncService::SetOverride(grpc::ServerContext* context,
                                      const v1::SetOverrideRequest* request,
                                      v1::SetOverrideResponse* response) {
  const auto ask = [&](Tick deadline) -> absl::StatusOr<Reply> {
    OverrideSet set{.adapter = AdapterName(request->adapter()),
                    .request_id = request->request_id()};
    set.pool = CompletePool(request->pool(), set.adapter);
    if (request->has_version()) {
      LORRY_ASSIGN_OR_RETURN(set.version, CompleteVersion(request->version()));
      if (set.version->adapter != set.adapter) {
        return Error(absl::StatusCode::kInvalidArgument, "MESSAGE_INVALID",
                     "the version is of another adapter");
      }
    }
    return orchestrator_.Ask(std::move(set), deadline);
  };
  const auto serve = [&](const rpc::Call& call) -> absl::Status {
    LORRY_RETURN_IF_ERROR(CheckAdapterName(request->adapter()));
    if (request->request_id().size() > kRequestIdBytesMax) {
      return Error(absl::StatusCode::kInvalidArgument, "MESSAGE_INVALID",
                   "request_id is longer than 64 bytes");
    }
    LORRY_ASSIGN_OR_RETURN(const Reply reply,
                           AskUntilHeard(call.deadline, [&] { return ask(call.deadline); }));
    response->set_epoch(reply.epoch.value);
    return absl::OkStatus();
  };
  return gate_.Serve(*context, "SetOverride", rpc::Role::kOperator, serve,
                     {.adapter = request->adapter()});
}

grpc::Status SyncService::MarkMember(grpc::ServerContext* context,
                                     const v1::MarkMemberRequest* request,
                                     v1::MarkMemberResponse*) {
  return gate_.Serve(
      *context, "MarkMember", rpc::Role::kOperator, [&](const rpc::Call& call) -> absl::Status {
        LORRY_RETURN_IF_ERROR(CheckName("the member", request->member()));
        MemberMarked marked{.member = MemberId(request->member()), .why = request->reason()};
        switch (request->mark()) {
          case v1::MarkMemberRequest::MARK_EXCLUDED:
            marked.mark = MemberMark::kExcluded;
            break;
          case v1::MarkMemberRequest::MARK_INCLUDED:
            marked.mark = MemberMark::kIncluded;
            break;
          case v1::MarkMemberRequest::MARK_DEAD:
            marked.mark = MemberMark::kDead;
            break;
          default:
            return Error(absl::StatusCode::kInvalidArgument, "MESSAGE_INVALID",
                         "mark must be EXCLUDED, INCLUDED or DEAD");
        }
        return orchestrator_.Ask(std::move(marked), call.deadline).status();
      });
}

grpc::Status SyncService::LiftVerdict(grpc::ServerContext* context,
                                      const v1::LiftVerdictRequest* request,
                                      v1::LiftVerdictResponse*) {
  return gate_.Serve(
      *context, "LiftVerdict", rpc::Role::kOperator,
      [&](const rpc::Call& call) -> absl::Status {
        LORRY_ASSIGN_OR_RETURN(VersionKey version, CompleteVersion(request->version()));
        return orchestrator_.Ask(VerdictLifted{.version = std::move(version)}, call.deadline)
            .status();
      },
      {.adapter = request->version().adapter()});
}

grpc::Status SyncService::AdoptFleet(grpc::ServerContext* context,
                                     const v1::AdoptFleetRequest* request,
                                     v1::AdoptFleetResponse* response) {
  return gate_.Serve(
      *context, "AdoptFleet", rpc::Role::kOperator, [&](const rpc::Call& call) -> absl::Status {
        if (request->cluster() != cluster_) {
          return Error(absl::StatusCode::kInvalidArgument, "WRONG_CLUSTER",
                       absl::StrCat("this orchestrator serves cluster \"", cluster_,
                                    "\"; repeat that name to adopt it"));
        }
        LORRY_RETURN_IF_ERROR(
            orchestrator_.Ask(FleetAdopted{.newest = request->newest()}, call.deadline).status());
        LORRY_ASSIGN_OR_RETURN(const auto status, orchestrator_.GetStatus(call.deadline));
        *response->mutable_term() = rpc::ToProto(status->term);
        return absl::OkStatus();
      });
}

}  // namespace lorry::sync
