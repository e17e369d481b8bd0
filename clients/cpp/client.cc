#include "clients/cpp/client.h"

#include <grpcpp/client_context.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <ctime>
#include <random>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "clients/cpp/call.h"
#include "lib/base/clock.h"
#include "lib/base/error.h"
#include "lib/fleet/held.h"
#include "lib/rpc/fresh_channel.h"
#include "lib/rpc/status.h"
#include "lorry/engine/v1/proxy.grpc.pb.h"
#include "lorry/store/v1/store.grpc.pb.h"
#include "lorry/sync/v1/sync.grpc.pb.h"

namespace lorry::client {
namespace {

// BeginUpload carries a safetensors header of at most 16 MiB, a page of versions their configs.
constexpr int kMessageBytesMax = 24 << 20;
// The picture of a fleet: of the 20'000 members that a roster holds, 12 KiB each, which is what one
// says of some thirty adapters.
constexpr int kStatusBytesMax = 256 << 20;
constexpr uint32_t kPageSize = 200;
// A proxy answers within milliseconds.
constexpr int64_t kMemberTimeoutMs = 3'000;
// Each takes a connection and a thread; 64 silent ones are known after twice kMemberTimeoutMs.
constexpr size_t kMembersAskedAtOnce = 32;
// All members together, after which the rest are not asked. A fleet that is only slow needs less.
constexpr int64_t kAllMembersTimeoutMs = 30'000;
// An orchestrator that restarts is back within a second or two; it is asked again at this pace.
constexpr int64_t kRedialMs = 200;

using StoreStub = store::v1::StoreService::Stub;
using SyncStub = lorry::sync::v1::SyncService::Stub;
using ProxyStub = engine::v1::ProxyService::Stub;

std::string NameOf(const lorry::sync::v1::MemberStatus& member) {
  return absl::StrCat("the engine-proxy at ", member.admin_address());
}

enum class Until { kAllAnswered, kOneAgreed };

// What each of `members` answers, in their order. With kOneAgreed the first OK ends the questions
// to the others.
template <typename Request, typename Response>
std::vector<absl::StatusOr<Response>> AskMembers(
    const Client::Members& members,
    const std::function<rpc::ChannelOptions(const lorry::sync::v1::MemberStatus&)>& channel_to,
    grpc::Status (ProxyStub::*method)(grpc::ClientContext*, const Request&, Response*),
    const Request& request, Until until) {
  const auto count = static_cast<size_t>(members.size());
  std::vector<absl::StatusOr<Response>> answers(count);
  std::vector<grpc::ClientContext> calls(count);
  const SteadyClock clock;
  const Tick ends_at = clock.Now() + kAllMembersTimeoutMs;
  const auto ask = [&](size_t i) -> absl::StatusOr<Response> {
    const auto& member = members[static_cast<int>(i)];
    if (member.admin_address().empty()) return absl::NotFoundError("it has never attached");
    const int64_t left_ms = std::min(kMemberTimeoutMs, ends_at - clock.Now());
    if (left_ms <= 0) {
      return absl::DeadlineExceededError(
          absl::StrCat(NameOf(member), " was not asked: too many others do not answer"));
    }
    LORRY_ASSIGN_OR_RETURN(const auto channel, rpc::MakeChannel(channel_to(member)));
    const auto stub = engine::v1::ProxyService::NewStub(channel);
    rpc::SetDeadlineIn(calls[i], left_ms);
    return Call(*stub, method, request, left_ms, NameOf(member), calls[i]);
  };
  std::atomic<size_t> next = 0;
  const auto ask_some = [&] {
    for (size_t i = next++; i < count; i = next++) {
      answers[i] = ask(i);
      if (until == Until::kAllAnswered || !answers[i].ok()) continue;
      next = count;
      for (grpc::ClientContext& call : calls) call.TryCancel();
    }
  };
  std::vector<std::thread> threads;
  while (threads.size() < std::min(count, kMembersAskedAtOnce)) threads.emplace_back(ask_some);
  for (std::thread& thread : threads) thread.join();
  return answers;
}

absl::Status NotNamed(const char* service) {
  return Error(absl::StatusCode::kInvalidArgument, "NO_ADDRESS",
               absl::StrCat("no ", service, " is named: give its host:port"));
}

// Makes a repeated call recognisable; two in a row never coincide.
std::string RandomId() {
  std::random_device random;
  return absl::StrCat(absl::Hex(random(), absl::kZeroPad8), absl::Hex(random(), absl::kZeroPad8));
}

}  // namespace

struct Client::Stubs {
  explicit Stubs(const ConnectOptions& o)
      : timeout_ms(o.call_timeout_ms),
        wait(o.wait_for_services),
        store_name(absl::StrCat("the adapter-store at ", o.store)),
        sync_name(absl::StrCat("the sync-orchestrator at ", o.orchestrator)) {}

  absl::Status NoOrchestrator() const { return NotNamed("sync-orchestrator"); }
  auto Sync() const { return lorry::sync::v1::SyncService::NewStub(sync->Get()); }
  template <typename Request, typename Response>
  absl::StatusOr<Response> OfStore(grpc::Status (StoreStub::*method)(grpc::ClientContext*,
                                                                     const Request&, Response*),
                                   const Request& request) const {
    if (store == nullptr) return NotNamed("adapter-store");
    const Tick ends_at = SteadyClock().Now() + timeout_ms;
    const auto stub = store::v1::StoreService::NewStub(Reach(*store));
    return Ask(*stub, method, request, ends_at, store_name);
  }
  template <typename Request, typename Response>
  absl::StatusOr<Response> OfSync(grpc::Status (SyncStub::*method)(grpc::ClientContext*,
                                                                   const Request&, Response*),
                                  const Request& request) const {
    if (sync == nullptr) return NoOrchestrator();
    const Tick ends_at = SteadyClock().Now() + timeout_ms;
    const auto stub = lorry::sync::v1::SyncService::NewStub(Reach(*sync));
    return Ask(*stub, method, request, ends_at, sync_name);
  }

  // Where calls wait, once somebody is there: one that waits stays with its channel, which asks for
  // a name again and again, but more and more rarely.
  std::shared_ptr<grpc::Channel> Reach(rpc::FreshChannel& service) const {
    return wait ? service.Await(std::chrono::milliseconds(timeout_ms)) : service.Get();
  }
  template <typename Stub, typename Method, typename Request>
  auto Ask(Stub& stub, Method method, const Request& request, Tick ends_at,
           const std::string& who) const {
    const int64_t left_ms = ends_at - SteadyClock().Now();
    grpc::ClientContext context;
    context.set_wait_for_ready(wait && left_ms > 0);
    // Nobody came; a last try says why.
    rpc::SetDeadlineIn(context, left_ms > 0 ? left_ms : kRedialMs);
    return Call(stub, method, request, timeout_ms, who, context);
  }

  // Until something changes about the connection, at most kRedialMs.
  static void Pause(rpc::FreshChannel& service) {
    const std::shared_ptr<grpc::Channel> channel = service.Get();
    channel->WaitForStateChange(channel->GetState(true), std::chrono::system_clock::now() +
                                                             std::chrono::milliseconds(kRedialMs));
  }

  const int64_t timeout_ms;
  const bool wait;
  const std::string store_name, sync_name;         // as messages name them
  std::shared_ptr<rpc::FreshChannel> store, sync;  // nullptr: not named
};

common::v1::VersionRef MakeRef(const std::string& adapter, uint64_t run, uint64_t number) {
  common::v1::VersionRef ref;
  ref.set_adapter(adapter);
  ref.set_run(run);
  ref.set_number(number);
  return ref;
}

Client::Client(ConnectOptions options)
    : options_(std::move(options)),
      stubs_(std::make_unique<Stubs>(options_)),
      mover_({.channel = ChannelTo(""), .ucx = options_.ucx}) {}

Client::~Client() = default;

rpc::ChannelOptions Client::ChannelTo(const std::string& target) const {
  return {.target = target,
          .tls = options_.tls,
          .token = options_.token,
          .token_file = options_.token_file,
          .receive_max_bytes = kMessageBytesMax};
}

absl::StatusOr<std::unique_ptr<Client>> Client::Connect(ConnectOptions options) {
  std::unique_ptr<Client> client(new Client(std::move(options)));
  const ConnectOptions& named = client->options_;
  if (!named.store.empty()) {
    rpc::ChannelOptions store = client->ChannelTo(named.store);
    store.idempotent = {"lorry.store.v1.StoreService"};
    LORRY_ASSIGN_OR_RETURN(client->stubs_->store, rpc::FreshChannel::Open(store));
  }
  if (!named.orchestrator.empty()) {
    rpc::ChannelOptions orchestrator = client->ChannelTo(named.orchestrator);
    orchestrator.receive_max_bytes = kStatusBytesMax;
    for (const char* call : {"GetStatus", "SetOverride", "MarkMember", "Resolve"})
      orchestrator.idempotent.push_back(absl::StrCat("lorry.sync.v1.SyncService/", call));
    LORRY_ASSIGN_OR_RETURN(client->stubs_->sync, rpc::FreshChannel::Open(orchestrator));
  }
  return client;
}

absl::StatusOr<store::v1::OpenRunResponse> Client::OpenRun(const RunRequest& asked) {
  store::v1::OpenRunRequest request;
  request.set_adapter(asked.adapter);
  if (asked.resume_from.has_value()) *request.mutable_resume_from() = *asked.resume_from;
  if (asked.expected_run.has_value()) request.set_expected_run(*asked.expected_run);
  request.set_request_id(RandomId());
  return stubs_->OfStore(&StoreStub::OpenRun, request);
}

absl::StatusOr<store::v1::BeginUploadResponse> Client::BeginUpload(
    const store::v1::BeginUploadRequest& request) {
  return stubs_->OfStore(&StoreStub::BeginUpload, request);
}

void Client::PauseBeforeRetry() { stubs_->Pause(*stubs_->store); }

absl::StatusOr<common::v1::Version> Client::Commit(const std::string& upload_id) {
  store::v1::CommitUploadRequest request;
  request.set_upload_id(upload_id);
  LORRY_ASSIGN_OR_RETURN(auto response, stubs_->OfStore(&StoreStub::CommitUpload, request));
  return std::move(*response.mutable_version());
}

absl::StatusOr<store::v1::OpenFetchResponse> Client::OpenFetch(
    const common::v1::VersionRef& version) {
  store::v1::OpenFetchRequest request;
  *request.mutable_version() = version;
  return stubs_->OfStore(&StoreStub::OpenFetch, request);
}

absl::StatusOr<store::v1::GetVersionResponse> Client::GetVersion(
    const common::v1::VersionRef& version) {
  store::v1::GetVersionRequest request;
  *request.mutable_version() = version;
  return stubs_->OfStore(&StoreStub::GetVersion, request);
}

absl::StatusOr<std::vector<common::v1::Version>> Client::Versions(const std::string& adapter,
                                                                  uint64_t run, size_t limit) {
  std::vector<common::v1::Version> versions;
  store::v1::ListVersionsRequest request;
  request.set_adapter(adapter);
  request.set_run(run);
  request.set_page_size(limit == 0 ? kPageSize
                                   : static_cast<uint32_t>(std::min<size_t>(limit, kPageSize)));
  do {
    LORRY_ASSIGN_OR_RETURN(auto response, stubs_->OfStore(&StoreStub::ListVersions, request));
    for (common::v1::Version& version : *response.mutable_versions()) {
      versions.push_back(std::move(version));
      if (limit != 0 && versions.size() == limit) return versions;
    }
    request.set_page_token(response.next_page_token());
  } while (!request.page_token().empty());
  return versions;
}

absl::Status Client::Delete(const common::v1::VersionRef& version) {
  store::v1::DeleteVersionRequest request;
  *request.mutable_version() = version;
  return stubs_->OfStore(&StoreStub::DeleteVersion, request).status();
}

absl::Status Client::ReleaseHolder(const std::string& holder) {
  store::v1::SetHoldsRequest request;
  request.set_holder(holder);
  request.set_incarnation(fleet::NewIncarnation(std::time(nullptr)));
  request.set_revision(1);
  return stubs_->OfStore(&StoreStub::SetHolds, request).status();
}

absl::StatusOr<store::v1::GetRevisionResponse> Client::StoreRevision() {
  return stubs_->OfStore(&StoreStub::GetRevision, store::v1::GetRevisionRequest());
}

absl::StatusOr<std::vector<store::v1::Adapter>> Client::Adapters() {
  std::vector<store::v1::Adapter> adapters;
  store::v1::ListAdaptersRequest request;
  request.set_page_size(kPageSize);
  do {
    LORRY_ASSIGN_OR_RETURN(auto response, stubs_->OfStore(&StoreStub::ListAdapters, request));
    for (store::v1::Adapter& adapter : *response.mutable_adapters())
      adapters.push_back(std::move(adapter));
    request.set_page_token(response.next_page_token());
  } while (!request.page_token().empty());
  return adapters;
}

absl::StatusOr<store::v1::GetAdapterResponse> Client::GetAdapter(const std::string& adapter) {
  store::v1::GetAdapterRequest request;
  request.set_name(adapter);
  return stubs_->OfStore(&StoreStub::GetAdapter, request);
}

absl::StatusOr<store::v1::Adapter> Client::SetPolicy(const std::string& adapter,
                                                     const common::v1::AdapterPolicy& policy,
                                                     std::optional<uint64_t> expected_generation) {
  store::v1::SetAdapterRequest request;
  request.set_name(adapter);
  *request.mutable_policy() = policy;
  if (expected_generation.has_value()) request.set_expected_generation(*expected_generation);
  LORRY_ASSIGN_OR_RETURN(auto response, stubs_->OfStore(&StoreStub::SetAdapter, request));
  return std::move(*response.mutable_adapter());
}

absl::StatusOr<store::v1::Adapter> Client::ArchiveAdapter(const std::string& adapter,
                                                          bool archived) {
  store::v1::ArchiveAdapterRequest request;
  request.set_name(adapter);
  request.set_archived(archived);
  LORRY_ASSIGN_OR_RETURN(auto response, stubs_->OfStore(&StoreStub::ArchiveAdapter, request));
  return std::move(*response.mutable_adapter());
}

absl::StatusOr<store::v1::DeleteAdapterResponse> Client::DeleteAdapter(const std::string& adapter,
                                                                       bool with_versions) {
  store::v1::DeleteAdapterRequest request;
  request.set_name(adapter);
  request.set_with_versions(with_versions);
  return stubs_->OfStore(&StoreStub::DeleteAdapter, request);
}

absl::StatusOr<store::v1::Alias> Client::SetAlias(
    const std::string& adapter, const std::string& alias,
    const std::optional<common::v1::VersionRef>& version,
    std::optional<uint64_t> expected_generation) {
  store::v1::SetAliasRequest request;
  request.set_adapter(adapter);
  request.set_alias(alias);
  if (version.has_value()) *request.mutable_version() = *version;
  if (expected_generation.has_value()) request.set_expected_generation(*expected_generation);
  LORRY_ASSIGN_OR_RETURN(auto response, stubs_->OfStore(&StoreStub::SetAlias, request));
  return std::move(*response.mutable_alias());
}

absl::StatusOr<lorry::sync::v1::GetStatusResponse> Client::Status(const std::string& pool,
                                                                  const std::string& adapter) {
  lorry::sync::v1::GetStatusRequest request;
  request.set_pool(pool);
  request.set_adapter(adapter);
  return stubs_->OfSync(&SyncStub::GetStatus, request);
}

absl::Status Client::Watch(const std::string& pool, const WatchFn& on_status,
                           const AwayFn& on_away) {
  if (stubs_->sync == nullptr) return stubs_->NoOrchestrator();
  lorry::sync::v1::WatchRequest request;
  request.set_pool(pool);
  Tick ends_at = 0;  // of the patience, which begins when somebody was there and is away
  while (true) {
    grpc::ClientContext context;  // a watch lasts as long as its reader wants it to
    const auto reader = stubs_->Sync()->Watch(&context, request);
    lorry::sync::v1::WatchResponse response;
    bool was_there = false, enough = false;
    while (reader->Read(&response)) {
      was_there = true;
      if (enough || on_status(response.status())) continue;
      enough = true;
      context.TryCancel();
    }
    const absl::Status ended = Annotate(rpc::FromGrpc(reader->Finish()), stubs_->sync_name);
    if (enough) return absl::OkStatus();
    if (!absl::IsUnavailable(ended)) return ended;
    if (was_there) {
      ends_at = SteadyClock().Now() + options_.call_timeout_ms;
      if (on_away) on_away(ended);
    }
    if (SteadyClock().Now() + kRedialMs >= ends_at) return ended;
    stubs_->Pause(*stubs_->sync);
  }
}

absl::StatusOr<lorry::sync::v1::WatchSyncResponse> Client::WatchSync(
    const common::v1::VersionRef& version, const std::string& pool, int64_t timeout_ms,
    const WatchSyncFn& on_progress) {
  if (stubs_->sync == nullptr) return stubs_->NoOrchestrator();
  lorry::sync::v1::WatchSyncRequest request;
  *request.mutable_version() = version;
  request.set_pool(pool);
  const SteadyClock clock;
  const Tick ends_at = clock.Now() + timeout_ms;
  while (true) {
    grpc::ClientContext context;
    rpc::SetDeadlineAt(context, ends_at);
    const auto reader = stubs_->Sync()->WatchSync(&context, request);
    lorry::sync::v1::WatchSyncResponse last, progress;
    while (reader->Read(&progress)) {
      last = progress;
      if (on_progress) on_progress(last);
    }
    const absl::Status ended = rpc::FromGrpc(reader->Finish());
    if (last.state() >= lorry::sync::v1::SYNC_STATE_ACTIVE) return last;
    if (absl::IsDeadlineExceeded(ended) && ReasonOf(ended).empty()) {
      return absl::DeadlineExceededError(absl::StrCat(version.adapter(), " v", version.number(),
                                                      " is stored, but not serving after ",
                                                      timeout_ms, " ms; it goes on without you"));
    }
    const bool again = ended.ok() || absl::IsUnavailable(ended) || absl::IsNotFound(ended);
    if (!again || clock.Now() + kRedialMs >= ends_at) {
      return Annotate(ended.ok() ? absl::UnavailableError("the stream ended early") : ended,
                      stubs_->sync_name);
    }
    stubs_->Pause(*stubs_->sync);
  }
}

absl::StatusOr<lorry::sync::v1::ResolveResponse> Client::Resolve(
    const lorry::sync::v1::ResolveRequest& request) {
  return stubs_->OfSync(&SyncStub::Resolve, request);
}

absl::StatusOr<lorry::sync::v1::SetOverrideResponse> Client::SetOverride(
    const std::string& adapter, const std::string& pool,
    const std::optional<common::v1::VersionRef>& version) {
  lorry::sync::v1::SetOverrideRequest request;
  request.set_adapter(adapter);
  request.set_pool(pool);
  if (version.has_value()) *request.mutable_version() = *version;
  request.set_request_id(RandomId());
  return stubs_->OfSync(&SyncStub::SetOverride, request);
}

absl::Status Client::LiftVerdict(const common::v1::VersionRef& version) {
  lorry::sync::v1::LiftVerdictRequest request;
  *request.mutable_version() = version;
  return stubs_->OfSync(&SyncStub::LiftVerdict, request).status();
}

absl::Status Client::MarkMember(const lorry::sync::v1::MarkMemberRequest& request) {
  return stubs_->OfSync(&SyncStub::MarkMember, request).status();
}

absl::StatusOr<lorry::sync::v1::AdoptFleetResponse> Client::AdoptFleet(const std::string& cluster,
                                                                       bool newest) {
  lorry::sync::v1::AdoptFleetRequest request;
  request.set_cluster(cluster);
  request.set_newest(newest);
  return stubs_->OfSync(&SyncStub::AdoptFleet, request);
}

rpc::ChannelOptions Client::ChannelToProxy(const lorry::sync::v1::MemberStatus& member) const {
  rpc::ChannelOptions options = ChannelTo(member.admin_address());
  options.tls.server_name = member.admin_tls_name();
  return options;
}

std::vector<absl::StatusOr<engine::v1::GetStatusResponse>> Client::ProxyStatuses(
    const Members& members) {
  return AskMembers(
      members, [this](const auto& member) { return ChannelToProxy(member); }, &ProxyStub::GetStatus,
      engine::v1::GetStatusRequest(), Until::kAllAnswered);
}

absl::StatusOr<Client::Explained> Client::Explain(const std::string& request_id) {
  LORRY_ASSIGN_OR_RETURN(const auto status, Status());
  engine::v1::ExplainRequest request;
  request.set_request_id(request_id);
  auto answers = AskMembers(
      status.members(), [this](const auto& member) { return ChannelToProxy(member); },
      &ProxyStub::Explain, request, Until::kOneAgreed);
  std::vector<std::string> silent;
  for (size_t i = 0; i < answers.size(); ++i) {
    const std::string& member = status.members(static_cast<int>(i)).member();
    if (answers[i].ok()) return Explained{member, *std::move(answers[i])};
    if (!absl::IsNotFound(answers[i].status())) silent.push_back(member);
  }
  return Error(
      absl::StatusCode::kNotFound, "UNKNOWN_REQUEST",
      absl::StrCat(
          "none of ", status.members_size(), " engines remembers request ", request_id,
          silent.empty() ? "" : absl::StrCat("; no answer from ", absl::StrJoin(silent, ", "))));
}

absl::Status Client::Drain(const std::string& member, int64_t wait_ms) {
  LORRY_ASSIGN_OR_RETURN(const auto status, Status());
  const auto& all = status.members();
  const auto known =
      std::find_if(all.begin(), all.end(), [&](const auto& one) { return one.member() == member; });
  if (known == all.end()) {
    return Error(absl::StatusCode::kNotFound, "MEMBER_UNKNOWN",
                 absl::StrCat("no engine is named ", member,
                              "; `lorry engines` lists them, without those that have drained"));
  }
  LORRY_ASSIGN_OR_RETURN(const auto channel, rpc::MakeChannel(ChannelToProxy(*known)));
  const auto stub = engine::v1::ProxyService::NewStub(channel);
  const SteadyClock clock;
  const Tick until = clock.Now() + wait_ms;
  while (true) {
    const absl::Status drained = Call(*stub, &ProxyStub::Drain, engine::v1::DrainRequest(),
                                      until - clock.Now(), NameOf(*known))
                                     .status();
    // A proxy answers after two minutes at the latest, however long one would wait.
    if (ReasonOf(drained) != "DRAINING" || until - clock.Now() < kMemberTimeoutMs) return drained;
  }
}

}  // namespace lorry::client
