#include "services/sync_orchestrator/rpc/store_link.h"

#include <spdlog/spdlog.h>

#include "lib/fleet/held.h"
#include "lib/rpc/channel.h"
#include "lib/rpc/fleet_messages.h"
#include "lib/rpc/policy_messages.h"
#include "lib/rpc/status.h"

namespace lorry::sync {
namespace {

// A holder set is a few thousand names at most; a store that cannot write it in this time is asked
// again.
constexpr int64_t kHoldsDeadlineMs = 5'000;

// What the store says of a larger set; the machine asks for no larger one.
constexpr char kTooMany[] =
    "TOO_MANY_HOLDS: more versions are needed than may be held; old ones that policies keep are "
    "the "
    "first to be left out, and the store may delete them: lower keep";

absl::StatusOr<VersionInfo> VersionOf(const common::v1::Version& version) {
  VersionInfo out;
  LORRY_ASSIGN_OR_RETURN(out.key, rpc::FromProto(version.ref()));
  LORRY_ASSIGN_OR_RETURN(out.traits, rpc::FromProto(version.traits()));
  out.digest = Digest{version.digest()};
  return out;
}

absl::StatusOr<AdapterInfo> AdapterOf(const store::v1::Adapter& adapter) {
  LORRY_RETURN_IF_ERROR(CheckAdapterName(adapter.name()));
  AdapterInfo out{.adapter = AdapterName(adapter.name()),
                  .policy = {},
                  .current_run = RunId(adapter.current_run())};
  LORRY_ASSIGN_OR_RETURN(out.policy, rpc::PolicyFromProto(adapter.policy()));
  return out;
}

}  // namespace

StoreLink::StoreLink(std::shared_ptr<rpc::FreshChannel> channel, std::string holder,
                     Orchestrator& orchestrator)
    : channel_(std::move(channel)),
      holder_(std::move(holder)),
      orchestrator_(orchestrator),
      executor_({.name = "holds", .threads = 1, .waiting_max = 16}),
      catch_up_(*channel_, [this](const CatchUp::Mark& mark) { return HasComeTo(mark); }),
      watch_({.start =
                  [this](grpc::ClientContext* context, auto* reactor) {
                    MutexLock lock(mutex_);
                    // Not in on_open: what is accepted before that is news to the watch, too.
                    accepted_.reset();
                    full_ = false;
                    request_.set_from_revision(cursor_);
                    request_.set_store(store_);
                    request_.set_holder(holder_);
                    Stub()->async()->Watch(context, &request_, reactor);
                  },
              .on_open =
                  [this] {
                    MutexLock lock(mutex_);
                    connected_ = true;
                    if (cursor_ == 0) {
                      synced_ = false;
                      adapters_.clear();
                      versions_.clear();
                      aliases_.clear();
                    }
                  },
              .on_message = [this](const store::v1::WatchResponse& message) { OnMessage(message); },
              .on_closed = [this](const absl::Status& why) { OnClosed(why); }}) {}

StoreLink::~StoreLink() { Stop(); }

std::unique_ptr<store::v1::StoreService::Stub> StoreLink::Stub() const {
  return store::v1::StoreService::NewStub(channel_->Get());
}

void StoreLink::Start() { watch_.Start(); }

void StoreLink::Stop() {
  watch_.Stop();
  executor_.Stop();
  catch_up_.Stop();
}

bool StoreLink::connected() const {
  MutexLock lock(mutex_);
  return connected_ && synced_;
}

std::map<AdapterName, VersionKey> StoreLink::Newest() const {
  MutexLock lock(mutex_);
  std::map<AdapterName, VersionKey> newest;
  for (const auto& [key, version] : versions_) {  // ascending: the last one stays
    const auto adapter = adapters_.find(key.adapter);
    if (adapter != adapters_.end() && adapter->second.current_run == key.run)
      newest[key.adapter] = key;
  }
  return newest;
}

std::optional<AdapterInfo> StoreLink::Find(const AdapterName& adapter) const {
  MutexLock lock(mutex_);
  const auto it = adapters_.find(adapter);
  if (it == adapters_.end()) return std::nullopt;
  return it->second;
}

bool StoreLink::Knows(const VersionKey& version, const PoolName& pool) const {
  MutexLock lock(mutex_);
  const auto adapter = adapters_.find(version.adapter);
  return adapter != adapters_.end() && adapter->second.policy.pools.contains(pool) &&
         versions_.contains(version);
}

bool StoreLink::HasComeTo(const CatchUp::Mark& mark) const {
  MutexLock lock(mutex_);
  return synced_ && store_ == mark.store() && cursor_ >= mark.revision();
}

std::string StoreLink::WhyNotHeld() const {
  if (!connected()) return "the store is away";  // what it said before may be mended by now
  const std::string refused = not_held_.why();
  return refused.empty() && cut_ ? kTooMany : refused;
}

void StoreLink::OnClosed(const absl::Status& why) {
  {
    MutexLock lock(mutex_);
    connected_ = false;
    if (why.code() == absl::StatusCode::kOutOfRange) cursor_ = 0;
  }
  if (outage_.IsNews(why))
    spdlog::warn("the store is not followed, and is dialled again and again: {}", outage_.why());
}

void StoreLink::Post(Event event) { orchestrator_.PostAnswer(std::move(event)); }

// Facts must not be lost: a full mailbox ends the watch, which then goes on from the cursor. It may
// be full for hours, as where the disk is, and each watch has the store read what this one missed.
void StoreLink::OnMessage(const store::v1::WatchResponse& message) {
  if (!Take(message)) watch_.RedialInVain();
}

// The whole message or, where the mailbox is full, nothing of it.
bool StoreLink::Take(const store::v1::WatchResponse& message) {
  MutexLock lock(mutex_);
  full_ = full_ || !orchestrator_.HasRoom();
  if (full_) return false;
  if (outage_.End()) spdlog::info("the store is followed");
  for (const store::v1::Change& change : message.changes()) Apply(change);
  if (message.synced()) {
    synced_ = true;
    StoreListed listed;
    for (const auto& [name, info] : adapters_) listed.adapters.push_back(info);
    for (const auto& [key, info] : versions_) listed.versions.push_back(info);
    for (const auto& [name, target] : aliases_)
      listed.aliases.push_back({name.first, name.second, target});
    listed.remembered = accepted_;
    if (message.has_remembered()) {
      const HoldsMark mark{message.remembered().incarnation(),
                           Revision(message.remembered().revision())};
      listed.remembered = std::max(mark, accepted_.value_or(mark));
    }
    store_ = message.store();
    Post(std::move(listed));
  }
  // A present state that is cut short has to begin again.
  if (synced_) cursor_ = message.revision();
  catch_up_.OnHeard();
  return true;
}

void StoreLink::Apply(const store::v1::Change& change) {
  if (change.has_version_stored()) {
    absl::StatusOr<VersionInfo> version = VersionOf(change.version_stored());
    if (!version.ok()) {
      spdlog::error("the store sent a version that cannot be read: {}",
                    std::string(version.status().message()));
      return;
    }
    versions_[version->key] = *version;
    if (synced_) Post(VersionStored{*std::move(version)});
  } else if (change.has_version_deleted()) {
    absl::StatusOr<VersionKey> key = rpc::FromProto(change.version_deleted());
    if (!key.ok()) return;
    versions_.erase(*key);
    if (synced_) Post(VersionDeleted{*std::move(key)});
  } else if (change.has_adapter_set()) {
    absl::StatusOr<AdapterInfo> adapter = AdapterOf(change.adapter_set());
    if (!adapter.ok()) {
      spdlog::error("the store sent an adapter that cannot be read: {}",
                    std::string(adapter.status().message()));
      return;
    }
    // One that is archived is nobody's business here: its engines let it go.
    if (change.adapter_set().archived()) return Forget(adapter->adapter);
    adapters_[adapter->adapter] = *adapter;
    if (synced_) Post(AdapterSet{*std::move(adapter)});
  } else if (change.has_adapter_deleted()) {
    const AdapterName name(change.adapter_deleted());
    std::erase_if(aliases_, [&, synced = synced_](const auto& entry) {
      if (entry.first.first != name) return false;
      if (synced) Post(AliasSet{name, entry.first.second, std::nullopt});
      return true;
    });
    Forget(name);
  } else if (change.has_alias_set()) {
    const store::v1::Alias& alias = change.alias_set();
    AliasSet set{.adapter = AdapterName(alias.adapter()),
                 .alias = AliasName(alias.name()),
                 .target = std::nullopt};
    if (alias.has_version()) {
      absl::StatusOr<VersionKey> target = rpc::FromProto(alias.version());
      if (!target.ok()) return;
      set.target = *std::move(target);
    }
    const auto key = std::pair(set.adapter, set.alias);
    if (set.target.has_value()) {
      aliases_[key] = *set.target;
    } else {
      aliases_.erase(key);
    }
    if (synced_) Post(std::move(set));
  }
}

void StoreLink::Forget(const AdapterName& adapter) {
  adapters_.erase(adapter);
  if (synced_) Post(AdapterDeleted{adapter});
}

void StoreLink::SetHolds(HoldsMark mark, std::vector<VersionKey> versions) {
  {
    MutexLock lock(mutex_);
    holds_ = Holds{mark, std::move(versions)};
  }
  // Refused when sixteen wait already: one of those sends the newest set.
  (void)executor_.Submit([this] { SendHolds(); });
}

void StoreLink::SendHolds() {
  std::optional<Holds> holds;
  {
    MutexLock lock(mutex_);
    holds.swap(holds_);
  }
  if (!holds.has_value()) return;
  store::v1::SetHoldsRequest request;
  request.set_holder(holder_);
  request.set_incarnation(holds->mark.incarnation);
  request.set_revision(holds->mark.revision.value);
  for (const VersionKey& key : holds->versions) *request.add_versions() = rpc::ToProto(key);
  grpc::ClientContext context;
  rpc::SetDeadlineIn(context, kHoldsDeadlineMs);
  store::v1::SetHoldsResponse response;
  const absl::Status status = rpc::FromGrpc(Stub()->SetHolds(&context, request, &response));
  if (!status.ok()) {
    // The machine sends it again. Of a store that is away the watch tells; a store that refuses
    // has another orchestrator that sets them as well, or does not know this one's credentials, and
    // one that does not answer may have a disk that hangs.
    if (!absl::IsUnavailable(status) && not_held_.IsNews(status)) {
      spdlog::warn("holds revision={} not taken, and nothing new is served before they are: {}",
                   holds->mark.revision.value, not_held_.why());
    }
    return;
  }
  if (not_held_.End()) spdlog::info("holds revision={} taken", holds->mark.revision.value);
  const bool cut = holds->versions.size() >= fleet::kHeldVersionsMax;
  if (cut && !cut_) spdlog::warn("{}", kTooMany);
  cut_ = cut;
  HoldsAcked acked{.revision = holds->mark.revision, .missing = {}};
  {
    MutexLock lock(mutex_);
    accepted_ = holds->mark;
  }
  for (const common::v1::VersionRef& ref : response.missing()) {
    if (absl::StatusOr<VersionKey> key = rpc::FromProto(ref); key.ok())
      acked.missing.push_back(*std::move(key));
  }
  Post(std::move(acked));
}

}  // namespace lorry::sync
