// The machine's tables in the words of docs/machines.md: for the test that compares the two, and
// for whoever counts which rows were taken.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lorry::proxy {

// One row of a table; "–" where there is no effect or nothing is written.
struct TableRow {
  std::string_view state, event, next, effect, record;
};

std::vector<TableRow> ResidencyRows();
std::vector<TableRow> RowRows();  // without an effect: it is a new table for the door
std::vector<TableRow> PauseRows();

// How often each row was taken by one machine, in the order of the tables.
struct RowsTaken {
  std::vector<uint64_t> residency, row, pause;
};

}  // namespace lorry::proxy
