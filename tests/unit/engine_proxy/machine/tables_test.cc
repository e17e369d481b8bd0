// docs/machines.md says what the code does, cell by cell.
#include "services/engine_proxy/machine/tables.h"

#include "gtest/gtest.h"
#include "tests/testing/doc_table.h"

namespace lorry::proxy {
namespace {

using testing::ExpectSaid;

TEST(Tables, TheDocumentSaysWhatTheResidencyDoes) {
  ExpectSaid(LORRY_MACHINES_DOC, "The proxy's residency", ResidencyRows());
}
TEST(Tables, TheDocumentSaysWhatTheRowDoes) {
  ExpectSaid(LORRY_MACHINES_DOC, "The proxy's row", RowRows());
}
TEST(Tables, TheDocumentSaysWhatThePauseDoes) {
  ExpectSaid(LORRY_MACHINES_DOC, "The proxy's pause", PauseRows());
}

}  // namespace
}  // namespace lorry::proxy
