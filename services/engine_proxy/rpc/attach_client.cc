#include "services/engine_proxy/rpc/attach_client.h"

#include <spdlog/spdlog.h>

#include <chrono>
#include <utility>

#include "lib/base/error.h"
#include "lib/rpc/fleet_messages.h"
#include "lib/runtime/fault_point.h"

namespace lorry::proxy {

AttachClient::AttachClient(std::shared_ptr<rpc::FreshChannel> channel, Self self, Proxy& proxy)
    : channel_(std::move(channel)),
      self_(std::move(self)),
      proxy_(proxy),
      observed_(proxy.first_observed()),
      stream_({.start =
                   [this](grpc::ClientContext* context, auto* reactor) {
                     const auto stub = sync::v1::SyncService::NewStub(channel_->Get());
                     stub->async()->Attach(context, reactor);
                   },
               .hello = [this] { return Hello(); },
               .on_open = [this] { OnOpen(); },
               .on_message =
                   [this](sync::v1::AttachResponse message) { OnMessage(std::move(message)); },
               .on_closed = [this](const absl::Status& why) { OnClosed(why); }}) {}

sync::v1::AttachRequest AttachClient::Hello() const {
  sync::v1::AttachRequest message;
  sync::v1::Hello& hello = *message.mutable_hello();
  hello.set_member(self_.member);
  hello.set_pool(self_.pool);
  hello.set_door_address(self_.door_address);
  hello.set_admin_address(admin_address_);
  hello.set_admin_tls_name(self_.admin_tls_name);
  hello.set_lorry_version(self_.lorry_version);
  MutexLock lock(mutex_);
  *hello.mutable_observed() = rpc::ToProto(observed_);
  return message;
}

void AttachClient::Send(const fleet::Observed& observed) {
  {
    MutexLock lock(mutex_);
    observed_ = observed;
    if (!attached_) return;
  }
  sync::v1::AttachRequest message;
  *message.mutable_observed() = rpc::ToProto(observed);
  (void)stream_.Send(std::move(message));  // latest wins, and the machine repeats itself
}

void AttachClient::OnOpen() {
  bool unreadable = false;
  {
    MutexLock lock(mutex_);
    attached_ = true;
    unreadable = unreadable_;
  }
  if (!unreadable) {
    outage_.End();
    spdlog::info("attached member={} pool={}", self_.member, self_.pool);
  }
  proxy_.Post(SessionUp{});
}

void AttachClient::OnMessage(sync::v1::AttachResponse message) {
  absl::StatusOr<fleet::Desired> desired = rpc::FromProto(message.desired());
  bool was_unreadable = false;
  {
    MutexLock lock(mutex_);
    was_unreadable = std::exchange(unreadable_, !desired.ok());
    if (desired.ok()) desired_ = *desired;
  }
  if (!desired.ok()) {
    if (outage_.IsNews(desired.status()))
      spdlog::error("a Desired that cannot be read: {}", outage_.why());
    return stream_.RedialInVain();
  }
  if (was_unreadable) {
    outage_.End();
    spdlog::info("attached member={} pool={}: its Desired can be read again", self_.member,
                 self_.pool);
  }
  LORRY_FAULT_POINT("proxy.desired.received");
  // Refused when the machine is far behind: the orchestrator sends the newest again.
  (void)proxy_.TryPost(DesiredReceived{*std::move(desired)});
}

void AttachClient::OnClosed(const absl::Status& why) {
  bool was_attached = false;
  bool left = false;
  {
    MutexLock lock(mutex_);
    std::swap(was_attached, attached_);
    left_ = left_ || (why.ok() && observed_.leaves);
    left = left_;
  }
  left_changed_.notify_all();
  if (left) {
    spdlog::info("left the fleet; the door opens again when this program is started again");
    stream_.Finish();
  } else if (outage_.IsNews(why)) {
    spdlog::warn("{}: {}", was_attached ? "detached" : "cannot attach", outage_.why());
  }
  if (was_attached) proxy_.Post(SessionDown{});
}

bool AttachClient::WaitUntilLeft(int64_t limit_ms, int64_t away_ms) {
  MutexLock lock(mutex_);
  const std::chrono::milliseconds wait(away_ms + (attached_ ? limit_ms : 0));
  return left_changed_.wait_until(mutex_, std::chrono::steady_clock::now() + wait,
                                  [this]() LORRY_REQUIRES(mutex_) { return left_; });
}

bool AttachClient::attached() const {
  MutexLock lock(mutex_);
  return attached_;
}

fleet::Desired AttachClient::desired() const {
  MutexLock lock(mutex_);
  return desired_;
}

}  // namespace lorry::proxy
