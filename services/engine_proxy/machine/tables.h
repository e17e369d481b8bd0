// The machine's tables in the words of docs/machines.md: for the test that compares the two, and
// for whoever counts which rows were taken.
#pragma once

#include <cstdint>
#include <vector>

#include "lib/base/transition.h"

namespace lorry::proxy {

std::vector<TableRow> ResidencyRows();
std::vector<TableRow> RowRows();  // without an effect: it is a new table for the door
std::vector<TableRow> PauseRows();

// How often each row was taken by one machine, in the order of the tables.
struct RowsTaken {
  std::vector<uint64_t> residency, row, pause;
};

}  // namespace lorry::proxy
