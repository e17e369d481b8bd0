// A small world explored as far as its bound allows: two members, two versions, one crash of the
// leader, of a proxy and of an engine, behind barriers one delay besides, and any order of what is on its way. A run differs from the
// plain one (whatever waits longest comes next) in a few places; all choices of these places are
// tried, and what was reached before with as many left is not looked at again.
#include <cstdio>
#include <unordered_map>
#include <vector>

#include "gtest/gtest.h"
#include "tests/sim/small_world.h"

namespace lorry::sim {
namespace {

constexpr size_t kStatesMost = 12'000;

class Explorer {
 public:
  explicit Explorer(fleet::SyncMode mode) : mode_(mode) {}

  // From the state after `prefix`, with so many choices left that are not the plain one.
  void From(const std::vector<size_t>& prefix, size_t left) {
    SmallWorld world(mode_);
    for (const size_t choice : prefix) {
      world.Choices();
      world.Choose(choice);
    }
    std::vector<size_t> path = prefix;
    for (;;) {
      const size_t choices = world.Choices();
      if (world.oracle().violated()) return Fail(path, world.oracle().violation());
      if (choices == 0) {
        ++ends;
        return;
      }
      if (!IsNew(world.Hash(), left)) return;
      if (left > 0) {
        for (size_t choice = 1; choice < choices; ++choice) {
          path.push_back(choice);
          waiting_.push_back({path, left - 1});
          path.pop_back();
        }
      }
      if (seen_.size() >= kStatesMost) return;
      path.push_back(0);
      world.Choose(0);
    }
  }

  // Breadth first: few deviations before many.
  void Explore(size_t deviations) {
    waiting_.push_back({{}, deviations});
    for (size_t next = 0; next < waiting_.size() && failure.empty(); ++next) {
      if (seen_.size() >= kStatesMost) return;
      const auto [prefix, left] = std::move(waiting_[next]);
      From(prefix, left);
    }
  }

  size_t states() const { return seen_.size(); }
  size_t ends = 0;
  std::string failure;

 private:
  bool IsNew(uint64_t hash, size_t left) {
    const auto [it, is_new] = seen_.emplace(hash, left);
    if (is_new) return true;
    if (it->second >= left) return false;
    it->second = left;
    return true;
  }
  void Fail(const std::vector<size_t>& path, const std::string& why) {
    failure = why + ", after the choices";
    for (size_t i = 0; i < path.size(); ++i) {
      if (path[i] != 0) failure += " " + std::to_string(i) + ":" + std::to_string(path[i]);
    }
  }

  fleet::SyncMode mode_;
  std::unordered_map<uint64_t, size_t> seen_;
  std::deque<std::pair<std::vector<size_t>, size_t>> waiting_;
};

void ExploreAll(fleet::SyncMode mode) {
  Explorer explorer(mode);
  explorer.Explore(3);
  std::printf("%zu states explored, %zu runs to their end\n", explorer.states(), explorer.ends);
  EXPECT_EQ(explorer.failure, "");
  EXPECT_GE(explorer.states(), kStatesMost);
}

TEST(SmallWorld, EveryOrderServesTheNewestVersion) { ExploreAll(fleet::SyncMode::kRolling); }
TEST(SmallWorld, InEveryOrderNothingOlderBeginsBehindABarrier) {
  ExploreAll(fleet::SyncMode::kBarrier);
}

}  // namespace
}  // namespace lorry::sim
