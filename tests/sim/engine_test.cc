// What the simulated engine holds against whoever unloads a name.
#include "gtest/gtest.h"
#include "tests/sim/sim_engine.h"

namespace lorry::sim {
namespace {

const EngineName kName("math-v1-0123456789ab");
const std::string kPath = "/e1/math";

class EngineTest : public ::testing::Test {
 protected:
  EngineTest() {
    engine_.Start();
    disk_[kPath] = {.digest = Digest{"bytes"}};
    engine_.Load(kName, kPath, [](proxy::Outcome, const std::string&) {});
    sim_.queue.RunUntil(1'000);
  }
  void Unload(uint32_t unknown) {
    engine_.Unload(kName, 1'000, unknown, [](proxy::Outcome, const std::string&) {});
  }
  bool IsViolated() const { return sim_.oracle.violated(); }

  Sim sim_{1};
  SimDisk disk_;
  SimEngine engine_{sim_, "e1", {}, disk_};
};

TEST_F(EngineTest, NobodyKnowsOfWhoCameAfterItToldItsLoad) {
  engine_.HasShownLoad();
  engine_.AskDirectly(kName, 5'000);
  Unload(engine_.unseen(kName));
  EXPECT_FALSE(IsViolated());
}

TEST_F(EngineTest, WhoCameBeforeThatIsKnown) {
  engine_.AskDirectly(kName, 5'000);
  engine_.HasShownLoad();
  Unload(engine_.unseen(kName));
  EXPECT_TRUE(IsViolated());
}

TEST_F(EngineTest, WhoHasGoneSinceExcusesNobodyElse) {
  engine_.AskDirectly(kName, 5'000);
  engine_.HasShownLoad();
  engine_.AskDirectly(kName, 10);
  sim_.queue.RunUntil(2'000);
  Unload(engine_.unseen(kName));
  EXPECT_TRUE(IsViolated());
}

TEST_F(EngineTest, WhoCameThroughTheDoorIsAlwaysKnown) {
  engine_.HasShownLoad();
  ASSERT_TRUE(engine_.Begin(kName, Digest{"bytes"}, engine_.boot(), 1));
  Unload(engine_.unseen(kName));
  EXPECT_TRUE(IsViolated());
}

}  // namespace
}  // namespace lorry::sim
