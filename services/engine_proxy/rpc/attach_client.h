// The proxy's session with the orchestrator: dials, says Hello with all that is, then Observed out
// and Desired in.
//
// Send from any thread; callbacks post to the machine. Owned by main; the proxy outlives it.
#pragma once

#include <memory>
#include <string>

#include "lib/base/mutex.h"
#include "lib/fleet/desired.h"
#include "lib/fleet/observed.h"
#include "lib/rpc/fresh_channel.h"
#include "lib/rpc/outage.h"
#include "lib/rpc/reconnecting_stream.h"
#include "lorry/sync/v1/sync.grpc.pb.h"
#include "services/engine_proxy/driver/proxy.h"

namespace lorry::proxy {

class AttachClient {
 public:
  // Of a message from the orchestrator: a document of as many of everything as is read of one
  // (lib/rpc/fleet_messages.cc), a kilobyte each.
  static constexpr int kReceiveBytesMax = 32 << 20;

  struct Self {
    std::string member;
    std::string pool;
    std::string door_address;  // "http://host:port"
    // The name in the certificate of its admin gRPC; empty: the host of its address.
    std::string admin_tls_name;
    std::string lorry_version;
  };
  AttachClient(std::shared_ptr<rpc::FreshChannel> channel, Self self, Proxy& proxy);

  void SetAdminAddress(std::string address) {
    admin_address_ = std::move(address);
  }  // before Start
  void Start() { stream_.Start(); }
  void Stop() { stream_.Stop(); }
  void Send(const fleet::Observed& observed);
  // After the machine heard that the door is closed: waits until the orchestrator has taken the
  // goodbye, for at most `limit_ms` in the session that there is, and `away_ms` besides for one that
  // is still to come. False: the member may still be on the roster.
  bool WaitUntilLeft(int64_t limit_ms, int64_t away_ms);
  bool attached() const;
  // Why it is not, as the last try ended; empty before that.
  std::string why_detached() const { return outage_.why(); }
  fleet::Desired desired() const;  // the last that came

 private:
  sync::v1::AttachRequest Hello() const;
  void OnOpen();
  void OnMessage(sync::v1::AttachResponse message);
  void OnClosed(const absl::Status& why);

  const std::shared_ptr<rpc::FreshChannel> channel_;
  const Self self_;
  std::string admin_address_;
  Proxy& proxy_;
  mutable Mutex mutex_;
  CondVar left_changed_;
  bool attached_ LORRY_GUARDED_BY(mutex_) = false;
  // A session ended with OK after a goodbye. Nobody is dialled from then on: this process has left
  // the fleet, and the next one attaches as a newcomer.
  bool left_ LORRY_GUARDED_BY(mutex_) = false;
  // The last document could not be read, as one of a newer orchestrator: an outage, until one can.
  bool unreadable_ LORRY_GUARDED_BY(mutex_) = false;
  fleet::Observed observed_ LORRY_GUARDED_BY(mutex_);
  fleet::Desired desired_ LORRY_GUARDED_BY(mutex_);
  rpc::Outage outage_;
  rpc::ReconnectingStream<sync::v1::AttachRequest, sync::v1::AttachResponse> stream_;
};

}  // namespace lorry::proxy
