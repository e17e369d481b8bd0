// Those who follow uploads, so as to read an image while its trainer still sends it.
//
// Of the followers of an adapter the first few hear of an upload, so that many of them do not take the
// store's link from the trainer; of those that relay fewer, as the others then read from these.
// One that does not keep up is ended and dials again. Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/base/mutex.h"
#include "lib/rpc/stream.h"
#include "lorry/store/v1/read_ahead.pb.h"
#include "services/adapter_store/images/transfers.h"

namespace lorry::store {

class UploadHub;

// One follower.
class FollowSession final : public rpc::WriteStream<v1::FollowUploadsResponse>,
                            public std::enable_shared_from_this<FollowSession> {
 public:
  struct Terms {
    std::set<AdapterName> adapters;      // whose uploads it hears of
    bool relays = false;                 // it passes images on
    std::vector<std::string> addresses;  // where it may read
  };
  // A status ends it as soon as it is open.
  FollowSession(UploadHub& hub, absl::StatusOr<Terms> terms);

 private:
  friend class UploadHub;
  void OnOpen() override;
  void OnClosed(const absl::Status& why) override;
  bool Wants(const AdapterName& adapter) const;

  UploadHub& hub_;                     // outlives the server and so every session
  const absl::StatusOr<Terms> terms_;  // OK once the hub has it
};

class UploadHub {
 public:
  static constexpr size_t kFollowersMax = 4'096;  // the engines of a large fleet
  static constexpr int kAdaptersMax = 64;         // of one follower

  // How many hear of one upload.
  struct Width {
    int readers = 8;
    int relays = 2;
  };
  // `transfers` outlives this.
  UploadHub(Transfers& transfers, Width width) : transfers_(transfers), width_(width) {}

  void OnOpened(const Upload& upload) LORRY_EXCLUDES(mutex_);
  void Add(std::shared_ptr<FollowSession> session) LORRY_EXCLUDES(mutex_);
  void Remove(const FollowSession* session) LORRY_EXCLUDES(mutex_);

 private:
  Transfers& transfers_;
  const Width width_;
  Mutex mutex_;
  // In the order in which they came.
  std::map<uint64_t, std::shared_ptr<FollowSession>> sessions_ LORRY_GUARDED_BY(mutex_);
  uint64_t next_ LORRY_GUARDED_BY(mutex_) = 0;
};

// INVALID_ARGUMENT: no adapters, too many, or one that is no name.
absl::StatusOr<std::set<AdapterName>> FollowedAdapters(const v1::FollowUploadsRequest& request);

}  // namespace lorry::store
