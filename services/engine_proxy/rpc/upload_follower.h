// Hears from the store of uploads that have begun, of the adapters that are read ahead.
//
// Dials once there is an adapter to follow. Owned by main, which ends it before what is read ahead.
#pragma once

#include <memory>
#include <set>

#include "lib/base/mutex.h"
#include "lib/rpc/fresh_channel.h"
#include "lib/rpc/reconnecting_stream.h"
#include "lorry/store/v1/store.grpc.pb.h"
#include "services/engine_proxy/driver/read_ahead.h"

namespace lorry::proxy {

class UploadFollower {
 public:
  // From now on `ahead` has its uploads from here. `relays`: this proxy passes images on.
  UploadFollower(std::shared_ptr<rpc::FreshChannel> channel, ReadAhead& ahead, bool relays);
  ~UploadFollower() { reader_.Stop(); }

 private:
  void Follow(const std::set<AdapterName>& adapters) LORRY_EXCLUDES(mutex_);
  void OnMessage(const store::v1::FollowUploadsResponse& message);

  const std::shared_ptr<rpc::FreshChannel> channel_;
  ReadAhead& ahead_;
  Mutex mutex_;
  store::v1::FollowUploadsRequest wanted_ LORRY_GUARDED_BY(mutex_);
  store::v1::FollowUploadsRequest asked_;  // gRPC's while a stream is open
  rpc::ReconnectingReader<store::v1::FollowUploadsResponse> reader_;
};

}  // namespace lorry::proxy
