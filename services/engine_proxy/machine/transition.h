// How the tables of docs/machines.md are looked up. Private to the folder.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace lorry::proxy {

// The row of `table` for a state and an event, counted in `taken`; null where there is none, and
// then nothing happens.
template <typename Transition>
const Transition* Take(std::span<const Transition> table, std::vector<uint64_t>& taken,
                       decltype(Transition::from) from, decltype(Transition::event) event) {
  const auto row = std::find_if(table.begin(), table.end(), [&](const Transition& t) {
    return t.from == from && t.event == event;
  });
  if (row == table.end()) return nullptr;
  ++taken[static_cast<size_t>(row - table.begin())];
  return &*row;
}

}  // namespace lorry::proxy
