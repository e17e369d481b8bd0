// What a follower owes whoever orders one after the other, by the words of follower.proto alone:
// which order counts, and what is on the node by it. One thread.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <utility>

#include "lorry/engine/v1/follower.pb.h"

namespace lorry::proxy::fuzz {

class Owed {
 public:
  // `versions`: the folder of all journals.
  explicit Owed(std::string versions) : versions_(std::move(versions)) {}

  std::string PathOf(const engine::v1::FollowRequest& order) const;

  // An order was not refused.
  void Heard(const engine::v1::FollowRequest& order);
  // The follower said that this directory is there; or it said that it is not, or it was changed.
  void Placed(const std::string& path) { placed_.insert(path); }
  void Unplaced(const std::string& path) { placed_.erase(path); }
  // Nothing on the node is whole any more.
  void Lost() { placed_.clear(); }
  // The follower starts again, and remembers no order.
  void Restarted() { ordered_ = false; }
  // From now on nobody can tell which order was the last.
  void Lose() { known_ = false; }
  bool is_known() const { return known_; }

  // The order that counts, asking for nothing.
  engine::v1::FollowRequest Latest() const;
  bool Lists(const std::string& path) const { return paths_.contains(path); }
  // Whether the order that counts lets a directory stay.
  bool MayStay(const std::string& path) const;
  const std::set<std::string>& placed() const { return placed_; }

 private:
  const std::string versions_;
  bool known_ = true;
  bool ordered_ = false;
  std::string member_, journal_, life_;
  uint64_t revision_ = 0;
  std::set<std::string> paths_, placed_;
};

}  // namespace lorry::proxy::fuzz
