#include "services/engine_proxy/driver/proxy.h"

#include <gtest/gtest.h>

#include <string>

#include "lib/base/error.h"
#include "lib/kv/memory_store.h"

namespace lorry::proxy {
namespace {

Proxy::Options OptionsOf(const std::string& journal) {
  return {.machine = {.member = MemberId("engine-1"),
                      .pool = PoolName("rollout"),
                      .new_journal = JournalId(journal)},
          .on_fatal = [](const absl::Status&) {}};
}

// A Hello may be sent before the machine's first turn, and the process may end in between.
TEST(Proxy, AJournalThatAnybodyMayHearOfIsThereForTheNextProcess) {
  const auto store = kv::MakeMemoryStore();
  const SteadyClock clock;
  const auto first = Proxy::Create(*store, clock, OptionsOf("j1"));
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ((*first)->first_observed().journal, JournalId("j1"));
  const auto next = Proxy::Create(*store, clock, OptionsOf("j2"));
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_EQ((*next)->first_observed().journal, JournalId("j1"));
}

TEST(Proxy, RecordsThatCannotBeReadAreSaidAndNothingElseHappens) {
  const auto store = kv::MakeMemoryStore();
  ASSERT_TRUE(store->Commit(kv::Transaction().Put("proxy/journal", "no record")).ok());
  const SteadyClock clock;
  const auto made = Proxy::Create(*store, clock, OptionsOf("j1"));
  EXPECT_EQ(ReasonOf(made.status()), "RECORD_UNREADABLE") << made.status();
}

}  // namespace
}  // namespace lorry::proxy
