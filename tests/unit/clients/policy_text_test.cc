// A policy written and read by people.
#include "clients/cli/policy_text.h"

#include <gmock/gmock.h>

#include "lib/base/error.h"

namespace lorry::cli {
namespace {

using common::v1::AdapterPolicy;
using ::testing::HasSubstr;

AdapterPolicy With(std::initializer_list<const char*> assignments) {
  AdapterPolicy policy;
  for (const char* assignment : assignments) {
    const absl::Status set = SetField(policy, assignment);
    EXPECT_TRUE(set.ok()) << set;
  }
  return policy;
}

std::string ValueOf(const AdapterPolicy& policy, const std::string& field) {
  const auto lines = DescribePolicy(policy);
  if (!lines.ok()) return lines.status().ToString();
  for (const PolicyLine& line : *lines) {
    if (line.field == field) return line.value + (line.is_default ? " (default)" : "");
  }
  return "no such field";
}

TEST(PolicyText, SetsEveryKindOfField) {
  const AdapterPolicy policy =
      With({"mode=barrier", "in_flight=finish-on-old", "max_staleness=0", "keep=3",
            "min_engines=75%", "stage_deadline=90s", "barrier_deadline_ms=1500",
            "quota_bytes=10GiB", "pools=rollout,eval=rollout,canary=@best"});
  EXPECT_EQ(policy.mode(), common::v1::SYNC_MODE_BARRIER);
  EXPECT_EQ(policy.in_flight(), common::v1::IN_FLIGHT_MODE_FINISH_ON_OLD);
  EXPECT_TRUE(policy.has_max_staleness());
  EXPECT_EQ(policy.keep().versions(), 3u);
  EXPECT_EQ(policy.min_engines().percent(), 75u);
  EXPECT_EQ(policy.stage_deadline_ms(), 90'000);
  EXPECT_EQ(policy.barrier_deadline_ms(), 1'500);
  EXPECT_EQ(policy.quota_bytes(), uint64_t{10} << 30);
  ASSERT_EQ(policy.pools_size(), 3);
  EXPECT_EQ(policy.pools(1).other_pool(), "rollout");
  EXPECT_EQ(policy.pools(2).alias(), "best");
}

TEST(PolicyText, DefaultUnsetsAField) {
  EXPECT_FALSE(With({"max_staleness=4", "max_staleness=default"}).has_max_staleness());
}

TEST(PolicyText, ShowsDefaultsAndWhatDiffersFromThem) {
  const AdapterPolicy policy = With({"mode=barrier", "max_staleness=3"});
  EXPECT_EQ(ValueOf(policy, "mode"), "barrier");
  EXPECT_EQ(ValueOf(policy, "skip"), "allowed (default)");
  EXPECT_EQ(ValueOf(policy, "min_engines"), "50% (default)");
  EXPECT_EQ(ValueOf(policy, "keep"), "4 (default)");
  EXPECT_EQ(ValueOf(policy, "pools"), "rollout (default)");
  EXPECT_EQ(ValueOf(With({"keep=all"}), "keep"), "all");
}

TEST(PolicyText, WhatTheStoreDecidesIsSaidToBeItsOwn) {
  EXPECT_EQ(ValueOf({}, "store_keep"), "the store's (default)");
  EXPECT_EQ(ValueOf({}, "quota_bytes"), "the store's (default)");
  EXPECT_EQ(ValueOf(With({"store_keep=0"}), "store_keep"), "0");  // all stay
  EXPECT_EQ(ValueOf(With({"quota_bytes=1KiB"}), "quota_bytes"), "1024");
}

TEST(PolicyText, SaysWhatWouldDo) {
  AdapterPolicy policy;
  const auto refusal = [&](const char* assignment) {
    const absl::Status status = SetField(policy, assignment);
    EXPECT_EQ(ReasonOf(status), "USAGE") << assignment;
    return std::string(status.message());
  };
  EXPECT_THAT(refusal("speed=9"), HasSubstr("max_staleness"));
  EXPECT_THAT(refusal("mode=fast"), HasSubstr("rolling, barrier"));
  EXPECT_THAT(refusal("mode"), HasSubstr("mode=VALUE"));
  EXPECT_THAT(refusal("keep=some"), HasSubstr("or all"));
  EXPECT_THAT(refusal("min_engines=most"), HasSubstr("50%"));
  EXPECT_THAT(refusal("stage_deadline=soon"), HasSubstr("30s"));
  EXPECT_THAT(refusal("quota_versions=-1"), HasSubstr("whole number"));
  EXPECT_THAT(refusal("pools=,"), HasSubstr("rollout"));
}

TEST(OnlyPool, IsTheOneThatFollowsWhatIsPublished) {
  AdapterPolicy policy;
  EXPECT_EQ(*OnlyPool("policy", policy), "rollout");
  ASSERT_TRUE(SetField(policy, "pools=canary=rollout,eval=@best,rollout").ok());
  EXPECT_EQ(*OnlyPool("policy", policy), "rollout");
  ASSERT_TRUE(SetField(policy, "pools=eval=@best").ok());
  EXPECT_EQ(*OnlyPool("policy", policy), "eval");
}

TEST(OnlyPool, NamesThoseThatMayBeMeant) {
  AdapterPolicy policy;
  for (const char* pools : {"pools=canary,rollout", "pools=canary=@a,rollout=@b"}) {
    ASSERT_TRUE(SetField(policy, pools).ok());
    const absl::Status refused = OnlyPool("policy", policy).status();
    EXPECT_EQ(ReasonOf(refused), "USAGE") << pools;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("canary and rollout"));
  }
}

TEST(PolicyText, EveryFieldIsExplained) {
  const auto& type = *common::v1::AdapterPolicy::descriptor();
  ASSERT_EQ(PolicySettings().size(), static_cast<size_t>(type.field_count()));
  for (int i = 0; i < type.field_count(); ++i) {
    EXPECT_EQ(PolicySettings()[i].spelled.substr(0, type.field(i)->name().size() + 1),
              type.field(i)->name() + "=");
  }
}

}  // namespace
}  // namespace lorry::cli
