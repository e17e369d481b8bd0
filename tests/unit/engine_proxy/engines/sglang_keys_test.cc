// Which of SGLang's keys each verb shows. The fake has SGLang's own rule: routes that are marked for
// administrators want the admin key where there is one, and all others the API key alone.
#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>
#include <ostream>

#include "lib/base/error.h"
#include "services/engine_proxy/engines/engines.h"
#include "tests/unit/engine_proxy/engines/answered.h"
#include "tests/unit/engine_proxy/engines/fake_process.h"

namespace lorry::engines {
namespace {

constexpr Engine::Millis kLong{30'000};

struct Keys {
  std::string api, admin;
  friend void PrintTo(const Keys& keys, std::ostream* out) { *out << keys.api << keys.admin; }
};

class KeysTest : public testing::Test {
 protected:
  template <typename T, typename Call>
  T Wait(Call call) {
    return Answered<T>(io_, std::move(call));
  }
  auto Detect(const std::string& url, const Keys& keys) {
    return Wait<absl::StatusOr<std::unique_ptr<Engine>>>([&](auto done) {
      DetectEngine(io_, {.url = url, .api_key = keys.api, .admin_key = keys.admin}, kLong, done);
    });
  }

  boost::asio::io_context io_;
};

class ServerTest : public KeysTest, public testing::WithParamInterface<Keys> {};
INSTANTIATE_TEST_SUITE_P(Keys, ServerTest,
                         testing::Values(Keys{"api", ""}, Keys{"", "admin"}, Keys{"api", "admin"}));

TEST_P(ServerTest, EveryVerbShowsTheOneThatItsRouteAsksFor) {
  std::vector<std::string> flags;
  if (!GetParam().api.empty()) flags.insert(flags.end(), {"--api-key", GetParam().api});
  if (!GetParam().admin.empty()) flags.insert(flags.end(), {"--admin-api-key", GetParam().admin});
  const FakeProcess fake("sglang", flags);
  const auto found = Detect(fake.url(), GetParam());
  ASSERT_TRUE(found.ok()) << found.status();
  Engine& engine = **found;
  const EngineName name("policy-v1");
  using fleet::PauseKind;
  using fleet::ProbeKind;

  const auto facts =
      Wait<absl::StatusOr<EngineFacts>>([&](auto done) { engine.Inspect(kLong, done); });
  EXPECT_TRUE(facts.ok()) << facts.status();
  const std::string path = TinyAdapters() + "/v1";
  EXPECT_EQ(Wait<absl::Status>([&](auto done) { engine.Load(name, path, kLong, done); }),
            absl::OkStatus());
  const auto listed =
      Wait<absl::StatusOr<Engine::Listing>>([&](auto done) { engine.List(kLong, done); });
  EXPECT_TRUE(listed.ok() && listed->contains(name)) << listed.status();
  for (const ProbeKind kind : {ProbeKind::kPresence, ProbeKind::kToken}) {
    const auto probed = Wait<absl::StatusOr<fleet::ProbeAnswer>>(
        [&](auto done) { engine.Probe(name, {.kind = kind}, kLong, done); });
    EXPECT_TRUE(probed.ok()) << probed.status();
  }
  const auto occupancy =
      Wait<absl::StatusOr<Occupancy>>([&](auto done) { engine.GetOccupancy(kLong, done); });
  EXPECT_TRUE(occupancy.ok()) << occupancy.status();
  for (const PauseKind pause : {PauseKind::kAbort, PauseKind::kNone}) {
    EXPECT_EQ(
        Wait<absl::Status>([&](auto done) { engine.SetPause(pause, /*flush=*/true, kLong, done); }),
        absl::OkStatus());
  }
  const auto passed = Wait<absl::StatusOr<RawReply>>([&](auto done) {
    engine.Pass({"POST", "/flush_cache", "{}"}, kLong, done);
  });
  EXPECT_TRUE(passed.ok() && passed->status == 200) << passed.status();
  EXPECT_EQ(Wait<absl::Status>([&](auto done) { engine.Unload(name, kLong, done); }),
            absl::OkStatus());
}

// One key in the other's place opens nothing.
TEST_F(KeysTest, TheFakeTellsThemApart) {
  const FakeProcess fake("sglang", {"--api-key", "api", "--admin-api-key", "admin"});
  EXPECT_EQ(ReasonOf(Detect(fake.url(), {"admin", "admin"}).status()), "ENGINE_UNAUTHORIZED");
  const auto found = Detect(fake.url(), {"api", "api"});
  ASSERT_TRUE(found.ok()) << found.status();
  const absl::Status loaded = Wait<absl::Status>([&](auto done) {
    (*found)->Load(EngineName("policy-v1"), TinyAdapters() + "/v1", kLong, done);
  });
  EXPECT_EQ(ReasonOf(loaded), "ENGINE_UNAUTHORIZED") << loaded;
}

}  // namespace
}  // namespace lorry::engines
