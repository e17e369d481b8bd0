// docs/machines.md says what the code does, cell by cell.
#include "services/sync_orchestrator/machine/tables.h"

#include "gtest/gtest.h"
#include "services/sync_orchestrator/machine/roster.h"
#include "tests/testing/doc_table.h"

namespace lorry::sync {
namespace {

using testing::ExpectSaid;

TEST(Tables, TheDocumentSaysWhatTheSyncDoes) {
  ExpectSaid(LORRY_MACHINES_DOC, "The orchestrator's sync", SyncRows());
}
TEST(Tables, TheDocumentSaysWhatTheVerdictDoes) {
  ExpectSaid(LORRY_MACHINES_DOC, "The orchestrator's verdict", VerdictRows());
}
TEST(Tables, TheDocumentSaysWhichStandingAMemberHas) {
  const testing::DocTable said =
      testing::ReadDocTable(LORRY_MACHINES_DOC, "The orchestrator's member");
  testing::DocTable done;
  for (const StandingRule& rule : StandingRules())
    done.push_back({std::string(rule.when), std::string(ToString(rule.standing))});
  EXPECT_EQ(said, done);
}

}  // namespace
}  // namespace lorry::sync
