#include "services/sync_orchestrator/rpc/gauges.h"

#include <gtest/gtest.h>

namespace lorry::sync {
namespace {

const AdapterName kPolicy("policy");
const PoolName kRollout("rollout");

Activation DecidedAt(uint64_t epoch) {
  Activation made;
  made.epoch = Epoch(epoch);
  return made;
}

MemberStatus MemberAt(uint64_t epoch) {
  MemberStatus member;
  member.pool = kRollout;
  member.standing = MemberStanding::kReady;
  fleet::ObservedRow row;
  row.adapter = kPolicy;
  row.epoch = Epoch(epoch);
  member.observed.rows = {row};
  return member;
}

// Epochs 4 to 8 were used by syncs that were broken off.
TEST(LargestLag, CountsDecisionsAndNotEpochs) {
  PoolStatus pool;
  pool.adapter = kPolicy;
  pool.pool = kRollout;
  pool.history = {DecidedAt(2), DecidedAt(3), DecidedAt(9)};
  Status status;
  status.members = {MemberAt(9), MemberAt(3)};
  EXPECT_EQ(LargestLag(status, pool), 1);
  status.members.push_back(MemberAt(1));
  EXPECT_EQ(LargestLag(status, pool), 3);
  status.members.back().standing = MemberStanding::kLost;
  EXPECT_EQ(LargestLag(status, pool), 1);
}

}  // namespace
}  // namespace lorry::sync
