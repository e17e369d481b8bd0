// Everybody who watches the store. Each watcher has a cursor into the catalogue's revision log; one
// thread reads what is new for each and sends it.
//
// A watcher that does not keep up costs a bounded queue and is then ended (RESOURCE_EXHAUSTED
// STREAM_TOO_SLOW); one that comes back for revisions that are gone gets OUT_OF_RANGE
// REVISION_COMPACTED. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>

#include "lib/rpc/stream.h"
#include "lib/runtime/loop.h"
#include "lorry/store/v1/store.pb.h"
#include "services/adapter_store/catalog/catalog.h"

namespace lorry::store {

class WatchHub;

// One watcher. `seen_` belongs to the hub's thread.
class WatchSession final : public rpc::WriteStream<v1::WatchResponse>,
                           public std::enable_shared_from_this<WatchSession> {
 public:
  WatchSession(WatchHub& hub, const v1::WatchRequest& request);

 private:
  friend class WatchHub;
  void OnOpen() override;
  void OnClosed(const absl::Status& why) override;

  WatchHub& hub_;                 // outlives the server and so every session
  const std::string holder_;      // who watches, if it holds versions
  const std::string store_;       // where it saw `from_revision`; empty: it does not say
  bool greeted_ = false;          // it was told what is remembered of the holder
  std::optional<uint64_t> seen_;  // none: the picture has not been sent
};

class WatchHub {
 public:
  // A fleet has one orchestrator, a few dashboards and people; each watcher may queue some MB.
  static constexpr size_t kWatchersMax = 256;
  // Messages that wait for a reader: a burst of publishing, or the picture of a large store.
  static constexpr size_t kQueuedMax = 1024;

  explicit WatchHub(Catalog& catalog);  // outlives the hub

  void OnChanged();  // something was committed
  void Add(std::shared_ptr<WatchSession> session);
  void Remove(const WatchSession* session);

 private:
  void ServeAll();
  absl::Status Serve(WatchSession& session);
  absl::Status SendPicture(WatchSession& session);
  absl::Status Greet(WatchSession& session);
  absl::StatusOr<bool> SendChanges(WatchSession& session);
  absl::Status Describe(const Change& change, v1::WatchResponse& response);

  Catalog& catalog_;
  std::atomic<bool> will_serve_ = false;  // everybody, and whatever is committed until then
  std::map<const WatchSession*, std::shared_ptr<WatchSession>> sessions_;  // the loop's
  runtime::Loop loop_{"watch-hub"};  // last: its thread ends before the rest goes
};

}  // namespace lorry::store
