// The other nodes of an engine that runs on several: tensor or pipeline parallel ranks read an
// adapter's files each on its own node, so a directory must be on every node, under the same path,
// before the engine is asked to load it.
//
// A follower on each of those nodes (follower/agent.h) keeps there what this proxy has on its own
// shelf. Each order names every directory that may stay, so an order that is lost, late or repeated
// does no harm, and a follower that was away learns of everything with the next one.
//
// Calls block, within deadlines of their own; any thread. Owned by main. Without nodes every call
// succeeds at once.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/mutex.h"
#include "services/engine_proxy/machine/effects.h"

namespace lorry::proxy {

// A directory as the leader has it.
struct Placement {
  EngineName name;
  std::string path;
  DirectoryContents contents;
};

// What a follower is asked.
struct FollowerOrder {
  JournalId journal;
  // Of this life of the leader: a higher revision tells more than a lower one.
  std::string life;
  uint64_t revision = 0;
  std::set<std::string> paths;     // of all directories that the leader has or fetches
  std::optional<Placement> place;  // fetch this one, where it is not there
  // How often the leader has come to doubt it: at another number it is read and proven once more.
  uint64_t doubts = 0;
};

// Answers whether `order.place` is there; at the latest after `wait_ms`, when it is being fetched.
// The status of a fetch that failed; UNAVAILABLE FOLLOWER_UNANSWERED: nobody answers.
using AskFollower =
    std::function<absl::StatusOr<bool>(const FollowerOrder& order, int64_t wait_ms)>;

struct Follower {
  std::string address;  // for people
  AskFollower ask;
};

class Followers {
 public:
  // Paths of the directories on the leader's shelf.
  using ListPaths = std::function<std::set<std::string>()>;
  Followers(std::vector<Follower> nodes, JournalId journal, std::string life, ListPaths list);

  bool empty() const { return nodes_.empty(); }
  // How many answered when they were asked last; none was asked: all.
  size_t answering() const;

  // Lets every node begin, and holds the directory there until End.
  absl::Status Begin(const Placement& placement);
  // Until every node has it. CANCELLED once `cancelled` says so; the status of the first failure.
  // `waits` hears in words of each node that takes its time.
  using Waits = std::function<void(const std::string& for_whom)>;
  absl::Status Await(
      const Placement& placement, const std::function<bool()>& cancelled,
      const Waits& waits = [](const std::string&) {});
  // The fetch is over: from now on the directory stays where it is on the shelf.
  void End(const Placement& placement);

  // The directory may be what a load has failed of: no node is believed before it has read its own.
  void Doubt(const std::string& path);
  // Whether every node has it now: the last question before a load.
  absl::Status Confirm(const Placement& placement);
  // Tells every node what may stay; one that did not answer last learns it when it is asked next.
  void Tell();

 private:
  FollowerOrder Order(const Placement* placement) LORRY_EXCLUDES(mutex_);
  absl::StatusOr<bool> Ask(size_t node, const FollowerOrder& order, int64_t wait_ms);
  bool IsSilent(size_t node) const;

  const std::vector<Follower> nodes_;
  const JournalId journal_;
  const std::string life_;
  const ListPaths list_;
  mutable Mutex mutex_;
  uint64_t revision_ LORRY_GUARDED_BY(mutex_) = 0;
  std::multiset<std::string> fetching_ LORRY_GUARDED_BY(mutex_);     // paths
  std::set<size_t> silent_ LORRY_GUARDED_BY(mutex_);                 // nodes that did not answer
  std::map<std::string, uint64_t> doubts_ LORRY_GUARDED_BY(mutex_);  // by path
};

}  // namespace lorry::proxy
