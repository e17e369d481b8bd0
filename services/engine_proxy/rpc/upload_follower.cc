#include "services/engine_proxy/rpc/upload_follower.h"

#include <algorithm>
#include <utility>

#include "lib/rpc/fleet_messages.h"

namespace lorry::proxy {
namespace {

// A store that is too old, or has no room, is asked again at leisure: nothing depends on it.
constexpr rpc::Backoff kBackoff{.min_ms = 500, .max_ms = 30'000};

}  // namespace

UploadFollower::UploadFollower(std::shared_ptr<rpc::FreshChannel> channel, ReadAhead& ahead,
                               bool relays)
    : channel_(std::move(channel)),
      ahead_(ahead),
      reader_({.start =
                   [this](grpc::ClientContext* context, auto* reactor) {
                     {
                       MutexLock lock(mutex_);
                       asked_ = wanted_;
                     }
                     store::v1::StoreService::NewStub(channel_->Get())
                         ->async()
                         ->FollowUploads(context, &asked_, reactor);
                   },
               .on_message =
                   [this](const store::v1::FollowUploadsResponse& message) { OnMessage(message); }},
              kBackoff) {
  wanted_.set_relays(relays);
  ahead_.OnFollow([this](const std::set<AdapterName>& adapters) { Follow(adapters); });
}

void UploadFollower::Follow(const std::set<AdapterName>& adapters) {
  bool first = false;
  {
    MutexLock lock(mutex_);
    first = wanted_.adapters().empty();
    wanted_.clear_adapters();
    for (const AdapterName& adapter : adapters) wanted_.add_adapters(adapter.value);
  }
  if (first) return reader_.Start();
  reader_.Redial();
}

// What cannot be read is not read ahead; the version comes as every other.
void UploadFollower::OnMessage(const store::v1::FollowUploadsResponse& message) {
  const absl::StatusOr<VersionKey> key = rpc::FromProto(message.version());
  const auto address = std::ranges::find_if(message.addresses(), [](const std::string& each) {
    return transfer::SchemeOf(each) == "grpc";
  });
  if (!key.ok() || address == message.addresses().end()) return;
  ahead_.Begin({.key = *key,
                .bytes = message.image_bytes(),
                .source = {.address = *address, .ticket = message.ticket()}});
}

}  // namespace lorry::proxy
