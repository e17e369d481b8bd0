#include "services/engine_proxy/driver/proxy.h"

#include <gtest/gtest.h>

#include "lib/base/error.h"
#include "lib/kv/memory_store.h"

namespace lorry::proxy {
namespace {

TEST(Proxy, RecordsThatCannotBeReadAreSaidAndNothingElseHappens) {
  const auto store = kv::MakeMemoryStore();
  ASSERT_TRUE(store->Commit(kv::Transaction().Put("proxy/journal", "no record")).ok());
  const SteadyClock clock;
  const auto made = Proxy::Create(*store, clock,
                                  {.machine = {.member = MemberId("engine-1"),
                                               .pool = PoolName("rollout"),
                                               .new_journal = JournalId("j1")},
                                   .on_fatal = [](const absl::Status&) {}});
  EXPECT_EQ(ReasonOf(made.status()), "RECORD_UNREADABLE") << made.status();
}

}  // namespace
}  // namespace lorry::proxy
