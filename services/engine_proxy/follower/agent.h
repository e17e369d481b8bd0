// What `engine-proxy --follow` does on one more node of an engine: it keeps there the directories
// that the leader, the engine-proxy beside the engine's first node, has on its shelf, under the same
// paths (driver/followers.h).
//
// It fetches from the store by itself, proves every image as the leader does, and forgets nothing
// that the leader did not give up: whatever is not among an order's paths goes. It decides nothing.
// Thread-safe. Owned by main; transports and source outlive it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/clock.h"
#include "lib/base/mutex.h"
#include "lib/transfer/transport_set.h"
#include "services/engine_proxy/driver/fetcher.h"
#include "services/engine_proxy/driver/followers.h"
#include "services/engine_proxy/driver/image_shelf.h"

namespace lorry::proxy {

class Agent {
 public:
  // Opens the shelf of a journal; called anew when the leader comes with another one.
  using OpenShelf = std::function<absl::StatusOr<std::unique_ptr<ImageShelf>>(const JournalId&)>;
  // What the next image of an adapter may be told by; null: images come as they are.
  using OpenLast = std::function<std::unique_ptr<LastImages>(ImageShelf&)>;
  Agent(
      OpenShelf open, transfer::TransportSet& transports, ManifestSource source,
      OnFetched on_fetched, OpenLast open_last = [](ImageShelf&) { return nullptr; });
  ~Agent();

  // As AskFollower. FAILED_PRECONDITION IMAGE_DIR_DIFFERS: the leader's path of the directory is
  // not this node's; ABORTED ORDER_STALE: a later order does not know the directory any more.
  absl::StatusOr<bool> Follow(const FollowerOrder& order, Tick until);

  // Of the leader that it has now.
  std::map<std::string, uint64_t> fetched_bytes() const;
  Fetcher::Sources sources() const;
  size_t directories() const;  // that are placed and proven

 private:
  enum class Phase { kHashing, kFetching, kPlaced, kBroken, kFailed };
  // One directory.
  struct Entry {
    OpId op = 0;
    Phase phase = Phase::kHashing;
    uint64_t doubts = 0;  // the leader's, for which it was proven, and in which of its lives
    std::string life = {};
    absl::Status why = {};  // it failed
  };
  // A journal's directories, and who fetches them.
  struct Holding {
    std::unique_ptr<ImageShelf> shelf;
    std::unique_ptr<LastImages> last;
    std::unique_ptr<Fetcher> fetcher;
  };
  absl::Status TakeOn(const FollowerOrder& order) LORRY_REQUIRES(turn_);
  absl::Status OpenFor(const JournalId& journal) LORRY_REQUIRES(turn_);
  void Keep(const std::set<std::string>& paths) LORRY_REQUIRES(turn_);
  void Pursue(const Placement& placement, uint64_t doubts) LORRY_REQUIRES(turn_);
  absl::StatusOr<bool> Await(const EngineName& name, Tick until);
  void OnEvent(const Event& event);
  void Settle(OpId op, Phase phase, absl::Status why = {});
  void Drop(OpId op);

  const OpenShelf open_;
  transfer::TransportSet& transports_;
  const ManifestSource source_;
  const OnFetched on_fetched_;
  const OpenLast open_last_;
  Followers nobody_;  // a follower has none of its own
  // One order after the other; never held while anybody waits for a fetch.
  mutable Mutex turn_;
  JournalId journal_ LORRY_GUARDED_BY(turn_);
  std::string life_ LORRY_GUARDED_BY(turn_);
  uint64_t revision_ LORRY_GUARDED_BY(turn_) = 0;
  std::set<std::string> paths_ LORRY_GUARDED_BY(turn_);  // of the latest order
  OpId last_op_ LORRY_GUARDED_BY(turn_) = 0;
  Holding holding_ LORRY_GUARDED_BY(turn_);
  // Taken after turn_; events of the fetcher take it alone.
  mutable Mutex mutex_;
  CondVar changed_;
  std::map<EngineName, Entry> entries_ LORRY_GUARDED_BY(mutex_);
};

}  // namespace lorry::proxy
