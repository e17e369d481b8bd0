#include "lib/base/did_you_mean.h"

#include <gtest/gtest.h>

namespace lorry {
namespace {

TEST(DidYouMean, NamesTheNearestFirst) {
  EXPECT_EQ(DidYouMean("polcy", {"policy"}), "; did you mean policy?");
  EXPECT_EQ(DidYouMean("polcy-a", {"policy-b", "policy-a"}),
            "; did you mean policy-a or policy-b?");
  EXPECT_EQ(DidYouMean("policy", {"policy4", "policy3", "policy2", "policy1"}),
            "; did you mean policy1, policy2 or policy3?");
}

TEST(DidYouMean, KnowsAPartOfAName) {
  EXPECT_EQ(DidYouMean("math", {"math-policy-of-the-team"}),
            "; did you mean math-policy-of-the-team?");
  EXPECT_EQ(DidYouMean("policy-v3-and-more-of-it", {"policy"}), "; did you mean policy?");
}

TEST(DidYouMean, IsSilentWhereNothingIsNear) {
  EXPECT_EQ(DidYouMean("policy", {}), "");
  EXPECT_EQ(DidYouMean("policy", {"quite-different"}), "");
  EXPECT_EQ(DidYouMean("ab", {"xyz-ab-xyz"}), "") << "two letters are in every other name";
  EXPECT_EQ(DidYouMean(std::string(1'000'000, 'x'), {std::string(63, 'y')}), "");
}

}  // namespace
}  // namespace lorry
