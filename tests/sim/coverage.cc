#include "tests/sim/coverage.h"

#include <algorithm>
#include <cstdio>

namespace lorry::sim {
namespace {

std::vector<TableRow> RowsOf(const std::string& table) {
  if (table == "residency") return proxy::ResidencyRows();
  if (table == "row") return proxy::RowRows();
  if (table == "pause") return proxy::PauseRows();
  return table == "sync" ? sync::SyncRows() : sync::VerdictRows();
}

}  // namespace

void Coverage::Add(const std::string& table, const std::vector<uint64_t>& taken) {
  std::vector<uint64_t>& all = taken_[table];
  all.resize(RowsOf(table).size());
  for (size_t i = 0; i < taken.size(); ++i) all[i] += taken[i];
}

void Coverage::Add(const proxy::RowsTaken& taken) {
  Add("residency", taken.residency);
  Add("row", taken.row);
  Add("pause", taken.pause);
}

void Coverage::Add(const sync::RowsTaken& taken) {
  Add("sync", taken.sync);
  Add("verdict", taken.verdict);
}

void Coverage::Add(const Coverage& other) {
  for (const auto& [table, taken] : other.taken_) Add(table, taken);
}

void Coverage::Print() const {
  for (const auto& [table, taken] : taken_) {
    const auto never = std::count(taken.begin(), taken.end(), 0u);
    std::printf("%s: %zu of %zu rows taken\n", table.c_str(),
                taken.size() - static_cast<size_t>(never), taken.size());
    const std::vector<TableRow> rows = RowsOf(table);
    for (size_t i = 0; i < taken.size(); ++i) {
      if (taken[i] == 0)
        std::printf("  never: %s, %s\n", rows[i].state.c_str(), rows[i].event.c_str());
    }
  }
}

}  // namespace lorry::sim
