// The machine's picture of the fleet as GetStatus tells it.
#include "services/sync_orchestrator/rpc/sync_messages.h"

#include <gtest/gtest.h>

namespace lorry::sync {
namespace {

MemberStatus MemberOf(const char* name, const char* pool) {
  MemberStatus member;
  member.member = MemberId(name);
  member.pool = PoolName(pool);
  member.standing = MemberStanding::kReady;
  return member;
}

TEST(GetStatus, TellsOfAMemberWhatItsSessionSaid) {
  Status status;
  status.members = {MemberOf("e1", "rollout")};
  status.members[0].contact = {.door_address = "http://d", .lorry_version = "0.1.0"};
  status.members[0].heard_at = 1'000;
  const auto told = ToProto(status, {}, "", "", 1'250);
  ASSERT_EQ(told.members_size(), 1);
  EXPECT_EQ(told.members(0).state(), "READY");
  EXPECT_EQ(told.members(0).door_address(), "http://d");
  EXPECT_EQ(told.members(0).lorry_version(), "0.1.0");
  EXPECT_EQ(told.members(0).observed_age_ms(), 250);
}

TEST(GetStatus, IsOfThePoolThatWasAskedFor) {
  Status status;
  status.members = {MemberOf("e1", "rollout"), MemberOf("e2", "eval")};
  const auto told = ToProto(status, {}, "eval", "", 0);
  ASSERT_EQ(told.members_size(), 1);
  EXPECT_EQ(told.members(0).member(), "e2");
}

TEST(GetStatus, OfOneAdapterLeavesOutWhatMembersSayOfOthers) {
  Status status;
  status.members = {MemberOf("e1", "rollout")};
  for (const char* adapter : {"one", "two"}) {
    fleet::ObservedRow row;
    row.adapter = AdapterName(adapter);
    status.members[0].observed.rows.push_back(row);
    fleet::ObservedResidency residency;
    residency.key.adapter = AdapterName(adapter);
    status.members[0].observed.residencies.push_back(residency);
  }
  const auto told = ToProto(status, {}, "", "two", 0).members(0).observed();
  ASSERT_EQ(told.rows_size(), 1);
  EXPECT_EQ(told.rows(0).adapter(), "two");
  ASSERT_EQ(told.residencies_size(), 1);
  EXPECT_EQ(told.residencies(0).version().adapter(), "two");
}

}  // namespace
}  // namespace lorry::sync
