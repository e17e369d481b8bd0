// An orchestrator that cannot write its records stands still: readiness and metrics say so.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "lib/base/error.h"
#include "lib/metrics/registry.h"
#include "lib/rpc/channel.h"
#include "services/sync_orchestrator/rpc/gauges.h"
#include "services/sync_orchestrator/rpc/readiness.h"
#include "tests/fuzz/orchestrator/scripted_store.h"
#include "tests/testing/refusing_kv.h"
#include "tests/unit/sync_orchestrator/rpc/store_words.h"

namespace lorry::sync {
namespace {

using ::testing::HasSubstr;

class SilentProxy final : public MemberSession {
  void SendDesired(const fleet::Desired&) override {}
  void End(const absl::Status&) override {}
};

TEST(FullDisk, IsSeenInReadinessAndMetricsUntilThereIsRoom) {
  const SteadyClock clock;
  RefusingStore kv;
  kv.how = Error(absl::StatusCode::kResourceExhausted, "DISK_FULL", "no room");
  fuzz::ScriptedStore store;
  metrics::Registry registry{{.service = "sync-orchestrator", .version = "0"}};
  ServingMetrics serving(registry);
  SyncObserver observer{{}};
  const auto orchestrator = *Orchestrator::Create(kv, clock, {});
  StoreLink link(*rpc::FreshChannel::Open({.target = store.address()}), "orchestrator:test",
                 *orchestrator);
  orchestrator->Connect(link, observer);
  orchestrator->Start();
  link.Start();
  store.Say(At(1, true));
  const Gauges gauges(registry, *orchestrator, link, serving, clock);
  const auto ready = [&](int64_t wait_ms) {
    return IsReady(*orchestrator, link, clock.Now() + wait_ms);
  };
  EXPECT_TRUE(Eventually([&] { return ready(kPatienceMs).ok(); }));
  EXPECT_THAT(registry.Scrape(), HasSubstr("\nlorry_orchestrator_answers 1\n"));

  kv.refuses = true;
  fleet::Observed observed;
  observed.journal = JournalId("j");
  ASSERT_TRUE(orchestrator
                  ->OpenSession(MemberId("e1"), PoolName("rollout"), observed, Contact(),
                                std::make_shared<SilentProxy>())
                  .ok());
  EXPECT_TRUE(Eventually([&] { return !ready(1).ok(); }));
  EXPECT_THAT(registry.Scrape(), HasSubstr("\nlorry_orchestrator_answers 0\n"));

  kv.refuses = false;
  EXPECT_TRUE(Eventually([&] { return ready(kPatienceMs).ok(); }));
  EXPECT_THAT(registry.Scrape(), HasSubstr("\nlorry_orchestrator_answers 1\n"));
  link.Stop();
  orchestrator->Stop();
}

}  // namespace
}  // namespace lorry::sync
