// Records that earlier versions wrote, one a line, against what they mean to this one.
#pragma once

#include <fstream>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "gtest/gtest.h"

namespace lorry::testing {

// `decode` reads each line of the file as the value of `meant` in its place.
template <typename RecordValue, typename Decode>
void ExpectRead(const std::string& path, const std::vector<RecordValue>& meant, Decode decode) {
  std::ifstream file(path);
  size_t read = 0;
  for (std::string line; std::getline(file, line); ++read) {
    ASSERT_LT(read, meant.size()) << line;
    const absl::StatusOr<RecordValue> value = decode(line);
    ASSERT_TRUE(value.ok()) << line << ": " << value.status();
    EXPECT_EQ(*value, meant[read]) << line;
  }
  EXPECT_EQ(read, meant.size());
}

template <typename RecordValue>
void ExpectEveryKind(const std::vector<RecordValue>& records) {
  std::set<size_t> kinds;
  for (const RecordValue& record : records) kinds.insert(record.index());
  EXPECT_EQ(kinds.size(), std::variant_size_v<RecordValue>);
}

}  // namespace lorry::testing
