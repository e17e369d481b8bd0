// Connections that have shown no ticket yet. They have places of their own, so that whoever has no
// ticket cannot take the places of those who have one; and an address has a share of these, so that
// one stranger does not take them from all others. Thread-safe. Internal to lib/transfer.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "lib/base/mutex.h"
#include "lib/transfer/session.h"

namespace lorry::transfer {

class Doorstep {
 public:
  // A place, given back when it goes. The doorstep outlives it.
  class Place {
   public:
    Place() = default;
    Place(Doorstep* doorstep, std::string host) : doorstep_(doorstep), host_(std::move(host)) {}
    Place(Place&& other) noexcept
        : doorstep_(std::exchange(other.doorstep_, nullptr)), host_(std::move(other.host_)) {}
    Place& operator=(Place&& other) noexcept {
      Leave();
      doorstep_ = std::exchange(other.doorstep_, nullptr);
      host_ = std::move(other.host_);
      return *this;
    }
    ~Place() { Leave(); }
    void Leave() {
      if (doorstep_ != nullptr) std::exchange(doorstep_, nullptr)->Leave(host_);
    }

   private:
    Doorstep* doorstep_ = nullptr;
    std::string host_;
  };

  Doorstep(int places_max, int per_host_max) : left_(places_max), per_host_max_(per_host_max) {}

  // `peer` as gRPC writes it, "ipv4:10.0.0.1:4711". RESOURCE_EXHAUSTED TOO_MANY_SESSIONS.
  absl::StatusOr<Place> Enter(std::string_view peer) LORRY_EXCLUDES(mutex_) {
    // A port is another one in each connection. What has none, a Unix socket, is one host.
    const std::string host(peer.starts_with("ip") ? peer.substr(0, peer.rfind(':')) : "unix");
    MutexLock lock(mutex_);
    int& here = by_host_[host];
    if (left_ == 0 || here == per_host_max_) {
      if (here == 0) by_host_.erase(host);
      return TooManySessions(per_host_max_);
    }
    --left_;
    ++here;
    return Place(this, host);
  }

 private:
  void Leave(const std::string& host) LORRY_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    ++left_;
    if (--by_host_[host] == 0) by_host_.erase(host);
  }

  Mutex mutex_;
  int left_ LORRY_GUARDED_BY(mutex_);
  const int per_host_max_;
  std::map<std::string, int> by_host_ LORRY_GUARDED_BY(mutex_);
};

}  // namespace lorry::transfer
