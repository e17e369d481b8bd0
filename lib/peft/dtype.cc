#include "lib/peft/dtype.h"

#include <array>
#include <cstddef>

namespace lorry::peft {
namespace {

struct Row {
  std::string_view text;
  uint64_t bytes;
};

// Indexed by Dtype.
constexpr std::array<Row, 19> kRows = {{
    {"BOOL", 1},    {"U8", 1},          {"I8", 1},          {"F8_E5M2", 1}, {"F8_E4M3", 1},
    {"F8_E8M0", 1}, {"F8_E4M3FNUZ", 1}, {"F8_E5M2FNUZ", 1}, {"I16", 2},     {"U16", 2},
    {"F16", 2},     {"BF16", 2},        {"I32", 4},         {"U32", 4},     {"F32", 4},
    {"C64", 8},     {"F64", 8},         {"I64", 8},         {"U64", 8},
}};
static_assert(kRows.size() == static_cast<size_t>(Dtype::kU64) + 1);

}  // namespace

std::string_view ToString(Dtype dtype) { return kRows[static_cast<size_t>(dtype)].text; }

std::optional<Dtype> DtypeFromString(std::string_view text) {
  for (size_t i = 0; i < kRows.size(); ++i) {
    if (kRows[i].text == text) return static_cast<Dtype>(i);
  }
  return std::nullopt;
}

uint64_t ElementBytes(Dtype dtype) { return kRows[static_cast<size_t>(dtype)].bytes; }

}  // namespace lorry::peft
