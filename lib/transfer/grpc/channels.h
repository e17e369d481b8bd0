// The gRPC channels of a process's transports, one to each address. Thread-safe.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "lib/base/mutex.h"

namespace grpc {
class Channel;
}  // namespace grpc
namespace lorry::rpc {
class FreshChannel;
}  // namespace lorry::rpc

namespace lorry::transfer {

class Channels {
 public:
  // Makes a channel for "host:port" (credentials are its business); nullptr when it cannot, for
  // instance because a file with a token cannot be read.
  using Dial = std::function<std::shared_ptr<grpc::Channel>(const std::string& host_port)>;
  // Empty: insecure, for loopback.
  explicit Channels(Dial dial = {});

  // nullptr when there is none to be had.
  std::shared_ptr<grpc::Channel> To(const std::string& host_port) LORRY_EXCLUDES(mutex_);

 private:
  const Dial dial_;
  Mutex mutex_;
  std::map<std::string, std::shared_ptr<rpc::FreshChannel>> channels_ LORRY_GUARDED_BY(mutex_);
};

}  // namespace lorry::transfer
