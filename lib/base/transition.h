// How the tables of docs/machines.md are looked up, and what a test compares with the document.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace lorry {

// The row of `table` for a state and an event, counted in `taken`; null where there is none, and
// then nothing happens.
template <typename Transition>
const Transition* Take(std::span<const Transition> table, std::vector<uint64_t>& taken,
                       decltype(Transition::from) from, decltype(Transition::event) event) {
  const auto row = std::find_if(table.begin(), table.end(), [&](const Transition& t) {
    return t.from == from && t.event == event;
  });
  if (row == table.end()) return nullptr;
  if (taken.empty()) taken.resize(table.size());
  ++taken[static_cast<size_t>(row - table.begin())];
  return &*row;
}

// A row in the document's words; "–" where there is no effect or nothing is written.
struct TableRow {
  std::string state, event, next, effect, record;
};

// A name out of a list that is in the order of an enumeration.
template <typename Names, typename Value>
auto NameIn(const Names& names, Value value) {
  return names[static_cast<size_t>(value)];
}

}  // namespace lorry
