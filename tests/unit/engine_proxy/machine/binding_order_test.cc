// Several calls of a framework's on names: the newest that is served decides what a name stands for,
// and takes the place of an older name where there are too many.
#include <gtest/gtest.h>

#include <string>

#include "tests/unit/engine_proxy/machine/bench.h"

namespace lorry::proxy {
namespace {

class BindingOrderTest : public ::testing::Test {
 protected:
  BindingOrderTest() {
    bench_.files_ = {{"/d/one", "1"}, {"/d/two", "2"}, {"/d/three", "3"}};
    Bind("policy", "/d/one");
    bench_.silent_ = {kProbeEffect};  // what is bound from now on waits for it
  }

  uint64_t Bind(const std::string& name, const std::string& path) {
    bench_.Tell(BindAsked{++ticket_, name, path});
    return ticket_;
  }
  uint64_t Unbind(const std::string& name) {
    bench_.Tell(UnbindAsked{++ticket_, name});
    return ticket_;
  }
  void AnswerProbes() {
    bench_.silent_ = {};
    for (OpId op = 1; op < 100; ++op)
      bench_.Tell(ProbeDone{op, Outcome::kOk, "", "", {bench_.compared_, bench_.gap_}});
  }
  std::string Answered(uint64_t ticket) const {
    const auto it = bench_.bind_answers_.find(ticket);
    if (it == bench_.bind_answers_.end()) return "nothing yet";
    return it->second.answer == BindAnswer::kDone ? "done" : it->second.reason;
  }
  // The bytes that the name stands for; empty: none.
  std::string Serves(const std::string& name) const {
    const DoorBinding* binding = bench_.machine_->door_table().FindBinding(name);
    return binding != nullptr ? binding->digest.value : "";
  }

  Bench bench_{fleet::EngineKind::kVllm, 3};
  uint64_t ticket_ = 0;
};

TEST_F(BindingOrderTest, AnOlderCallDoesNotTakeTheNameBackFromALaterOne) {
  const uint64_t older = Bind("policy", "/d/two");
  ASSERT_EQ(Answered(older), "nothing yet");
  const uint64_t later = Bind("policy", "/d/one");
  EXPECT_EQ(Answered(later), "done");
  EXPECT_EQ(Answered(older), "BIND_SUPERSEDED");
  AnswerProbes();
  bench_.Pass(5'000);
  EXPECT_EQ(Serves("policy"), "1");
}

TEST_F(BindingOrderTest, ANameThatWasUnloadedIsNotBoundByACallFromBefore) {
  const uint64_t older = Bind("policy", "/d/two");
  const uint64_t first = Bind("other", "/d/three");
  EXPECT_EQ(Answered(Unbind("policy")), "done");
  EXPECT_EQ(Answered(Unbind("other")), "done") << "it was about to stand for something";
  EXPECT_EQ(Answered(older), "BIND_SUPERSEDED");
  EXPECT_EQ(Answered(first), "BIND_SUPERSEDED");
  AnswerProbes();
  bench_.Pass(5'000);
  EXPECT_EQ(Serves("policy"), "");
  EXPECT_EQ(Serves("other"), "");
}

TEST_F(BindingOrderTest, ALaterCallThatFailsEndsNoOtherOne) {
  const uint64_t older = Bind("policy", "/d/two");
  EXPECT_EQ(Answered(Bind("policy", "/d/nothing")), "DIRECTORY_INVALID");
  const uint64_t elsewhere = Bind("other", "/d/one");
  EXPECT_EQ(Answered(elsewhere), "done") << "another name";
  AnswerProbes();
  EXPECT_EQ(Answered(older), "done");
  EXPECT_EQ(Serves("policy"), "2");
}

TEST_F(BindingOrderTest, WhoeverAsksForTheSameTwiceIsServedTwice) {
  const uint64_t first = Bind("policy", "/d/two");
  const uint64_t again = Bind("policy", "/d/two");
  AnswerProbes();
  EXPECT_EQ(Answered(first), "done");
  EXPECT_EQ(Answered(again), "done");
  EXPECT_EQ(Serves("policy"), "2");
}

TEST_F(BindingOrderTest, ANameIsNotForgottenByItsOwnCall) {
  bench_.silent_ = {};
  for (int i = 1; i < 64; ++i) ASSERT_EQ(Answered(Bind("n" + std::to_string(i), "/d/one")), "done");
  const EngineName used = BindingName(Digest{"1"}, fleet::Render::kPlain);
  bench_.counts_[used] = 1;  // all 64 names stand for it
  bench_.Report();
  ASSERT_EQ(Answered(Bind("new", "/d/two")), "done");
  EXPECT_EQ(Serves("new"), "2");
  EXPECT_EQ(bench_.machine_->door_table().bindings.size(), 65u) << "as all others are in use";
  bench_.counts_.clear();
  bench_.Report();
  ASSERT_EQ(Answered(Bind("newer", "/d/three")), "done");
  EXPECT_EQ(Serves("policy") + Serves("n1"), "") << "the two oldest";
  EXPECT_EQ(Serves("n2"), "1");
}

}  // namespace
}  // namespace lorry::proxy
