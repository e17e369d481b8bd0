// A change of one of a machine's records, as a Ready has it. A plain value.
#pragma once

#include <compare>
#include <optional>
#include <string>

namespace lorry::fleet {

// What a step changes in the records; without a value the record is deleted.
template <typename Value>
struct RecordOf {
  std::string key;
  std::optional<Value> value;
  auto operator<=>(const RecordOf&) const = default;
};

}  // namespace lorry::fleet
