// Reads the tables of a document: what the code does beside what the document says it does.
#pragma once

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "lib/base/transition.h"

namespace lorry::testing {

// One table's rows below its head, each cell without the blanks around it.
using DocTable = std::vector<std::vector<std::string>>;

inline std::vector<std::string> CellsOf(const std::string& line) {
  std::vector<std::string> cells;
  std::istringstream in(line.substr(1));
  for (std::string cell; std::getline(in, cell, '|');) {
    const size_t begin = cell.find_first_not_of(" ");
    const size_t end = cell.find_last_not_of(" ");
    cells.push_back(begin == std::string::npos ? "" : cell.substr(begin, end - begin + 1));
  }
  return cells;
}

// The first table after the heading `## title`; empty where there is none.
inline DocTable ReadDocTable(const std::string& path, const std::string& title) {
  std::ifstream file(path);
  DocTable table;
  bool is_below = false;
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("## ", 0) == 0) is_below = line == "## " + title;
    if (!is_below) continue;
    const bool is_row = line.rfind("|", 0) == 0;
    if (is_row) table.push_back(CellsOf(line));
    if (!is_row && !table.empty()) break;
  }
  if (table.size() < 2) return {};
  table.erase(table.begin(), table.begin() + 2);  // the head and the line below it
  return table;
}

inline DocTable InCode(const std::vector<TableRow>& rows) {
  DocTable table;
  for (const TableRow& row : rows) {
    table.push_back({row.state, row.event, row.next, row.effect, row.record});
  }
  return table;
}

// The document says what the code does, cell by cell.
inline void ExpectSaid(const std::string& path, const std::string& title,
                       const std::vector<TableRow>& rows) {
  const DocTable said = ReadDocTable(path, title);
  const DocTable done = InCode(rows);
  for (size_t i = 0; i < std::max(said.size(), done.size()); ++i) {
    ASSERT_LT(i, said.size()) << title << ": the document lacks " << done[i][0] << ", "
                              << done[i][1];
    ASSERT_LT(i, done.size()) << title << ": the code lacks " << said[i][0] << ", " << said[i][1];
    EXPECT_EQ(said[i], done[i]) << title << ", row " << i + 1;
  }
  std::set<std::pair<std::string, std::string>> keys;
  for (const TableRow& row : rows) {
    EXPECT_TRUE(keys.insert({row.state, row.event}).second)
        << title << ": two rows for " << row.state << ", " << row.event;
  }
}

}  // namespace lorry::testing
