// docs/machines.md says what the code does, cell by cell.
#include "services/engine_proxy/machine/tables.h"

#include <set>

#include "gtest/gtest.h"
#include "tests/testing/doc_table.h"

namespace lorry::proxy {
namespace {

testing::DocTable InCode(const std::vector<TableRow>& rows) {
  testing::DocTable table;
  for (const TableRow& row : rows) {
    table.push_back({std::string(row.state), std::string(row.event), std::string(row.next),
                     std::string(row.effect), std::string(row.record)});
  }
  return table;
}

void ExpectSaid(const std::string& title, const std::vector<TableRow>& rows) {
  const testing::DocTable said = testing::ReadDocTable(LORRY_MACHINES_DOC, title);
  const testing::DocTable done = InCode(rows);
  for (size_t i = 0; i < std::max(said.size(), done.size()); ++i) {
    ASSERT_LT(i, said.size()) << title << ": the document lacks " << done[i][0] << ", "
                              << done[i][1];
    ASSERT_LT(i, done.size()) << title << ": the code lacks " << said[i][0] << ", " << said[i][1];
    EXPECT_EQ(said[i], done[i]) << title << ", row " << i + 1;
  }
  std::set<std::pair<std::string_view, std::string_view>> keys;
  for (const TableRow& row : rows) {
    EXPECT_TRUE(keys.insert({row.state, row.event}).second)
        << title << ": two rows for " << row.state << ", " << row.event;
  }
}

TEST(Tables, TheDocumentSaysWhatTheResidencyDoes) {
  ExpectSaid("The proxy's residency", ResidencyRows());
}
TEST(Tables, TheDocumentSaysWhatTheRowDoes) { ExpectSaid("The proxy's row", RowRows()); }
TEST(Tables, TheDocumentSaysWhatThePauseDoes) { ExpectSaid("The proxy's pause", PauseRows()); }

}  // namespace
}  // namespace lorry::proxy
