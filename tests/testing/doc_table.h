// Reads the tables of a document: what the code does beside what the document says it does.
#pragma once

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

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

}  // namespace lorry::testing
