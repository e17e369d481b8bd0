// Written by hand because a parser does more than the door needs: simdjson's index has an entry for
// every number and every comma, which made 32,768 token ids cost ten times what moving their bytes
// costs. tests/unit/engine_proxy/door/json_splice_test.cc holds it to a strict parser's verdicts.
#include "services/engine_proxy/door/json_scan.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace lorry::door {
namespace {

// The loops over one block have no exits, so that the compiler turns each into a few vector
// instructions; of what goes over many blocks it makes one more for processors with wider ones.
// (Sanitizers are not ready yet when the loader chooses.)
constexpr ptrdiff_t kTextBlock = 64;
constexpr ptrdiff_t kIdsBlock = 128;
#if defined(__x86_64__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__)
#define LORRY_WIDE __attribute__((target_clones("avx2", "default")))
#else
#define LORRY_WIDE
#endif

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

bool IsHex(char c) { return IsDigit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }

bool IsSpace(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

constexpr std::array<bool, 256> PlainText() {
  std::array<bool, 256> is = {};
  for (size_t c = 0x20; c < is.size(); ++c) is[c] = c != '"' && c != '\\';
  return is;
}
constexpr std::array<bool, 256> kIsPlainText = PlainText();

[[gnu::always_inline]] inline bool IsPlainBlock(const char* block) {
  uint8_t other = 0;
  for (ptrdiff_t i = 0; i < kTextBlock; ++i) {
    const auto c = static_cast<uint8_t>(block[i]);
    other |= static_cast<uint8_t>((c < 0x20) | (c == '"') | (c == '\\'));
  }
  return other == 0;
}

// Nothing but whole numbers without a sign, set apart by "," or ", ", and none with a leading zero.
// Looks at the bytes before and behind the block too: what is before it is such text already, or the
// block begins with one of 1 to 9. Of such text only digits are as large as '0'.
[[gnu::always_inline]] inline bool IsTokenIdBlock(const char* block) {
  uint8_t other = 0;
  for (ptrdiff_t i = 0; i < kIdsBlock; ++i) {
    const auto before = static_cast<int8_t>(block[i - 1]);
    const auto c = static_cast<int8_t>(block[i]);
    const auto behind = static_cast<int8_t>(block[i + 1]);
    const bool is_digit = (c >= '0') & (c <= '9');
    const bool is_comma = (c == ',') & (before >= '0');
    const bool is_space = (c == ' ') & (before == ',');
    const bool leads = (c == '0') & (before < '0') & (behind >= '0');
    other |= static_cast<uint8_t>(!(is_digit | is_comma | is_space) | leads);
  }
  return other == 0;
}

LORRY_WIDE const char* BehindPlainBlocks(const char* at, const char* end) {
  while (end - at >= kTextBlock && IsPlainBlock(at)) at += kTextBlock;
  return at;
}

LORRY_WIDE const char* BehindTokenIdBlocks(const char* at, const char* end) {
  while (end - at > kIdsBlock && IsTokenIdBlock(at)) at += kIdsBlock;
  return at;
}

}  // namespace

bool JsonScanner::Fail(const char* problem) {
  problem_ = problem;
  return false;
}

void JsonScanner::SkipSpace() {
  while (at_ != end_ && IsSpace(*at_)) ++at_;
}

bool JsonScanner::Take(char c) {
  if (at_ == end_ || *at_ != c) return false;
  ++at_;
  return true;
}

bool JsonScanner::SkipValue(int depth, JsonKind* kind) {
  if (depth > kMaxJsonDepth) return Fail("it is nested too deep");
  if (at_ == end_) return Fail("it ends too early");
  switch (*at_) {
    case '{':
      *kind = JsonKind::kObject;
      return SkipObject(depth);
    case '[':
      *kind = JsonKind::kArray;
      return SkipArray(depth);
    case '"':
      *kind = JsonKind::kString;
      return SkipString();
    case 't':
    case 'f':
      *kind = JsonKind::kBool;
      return SkipWord(*at_ == 't' ? "true" : "false");
    case 'n':
      *kind = JsonKind::kNull;
      return SkipWord("null");
    default:
      *kind = JsonKind::kNumber;
      return SkipNumber();
  }
}

bool JsonScanner::SkipObject(int depth) {
  ++at_;
  SkipSpace();
  if (Take('}')) return true;
  for (;;) {
    JsonKind ignored;
    if (!SkipString()) return false;
    SkipSpace();
    if (!Take(':')) return Fail("a key has no colon behind it");
    SkipSpace();
    if (!SkipValue(depth + 1, &ignored)) return false;
    SkipSpace();
    if (Take('}')) return true;
    if (!Take(',')) return Fail("an object is not closed");
    SkipSpace();
  }
}

bool JsonScanner::SkipArray(int depth) {
  ++at_;
  SkipSpace();
  if (Take(']')) return true;
  for (;;) {
    JsonKind ignored;
    SkipTokenIds();
    if (!SkipValue(depth + 1, &ignored)) return false;
    SkipSpace();
    if (Take(']')) return true;
    if (!Take(',')) return Fail("a list is not closed");
    SkipSpace();
  }
}

// From a place where a value is due to a later one in the same list, or not at all: whole blocks of
// token ids, and back to behind the last comma in them.
void JsonScanner::SkipTokenIds() {
  if (at_ == end_ || !IsDigit(*at_) || *at_ == '0' || at_ < no_token_ids_before_) return;
  const char* const block = BehindTokenIdBlocks(at_, end_);
  no_token_ids_before_ = block + kIdsBlock;
  const char* place = block;
  while (place != at_ && place[-1] != ',') --place;
  if (place == at_) return;
  at_ = place;
  SkipSpace();
}

bool JsonScanner::SkipString() {
  if (!Take('"')) return Fail("a string is expected");
  for (;;) {
    if (end_ - at_ >= kTextBlock) at_ = BehindPlainBlocks(at_, end_);
    while (at_ != end_ && kIsPlainText[static_cast<uint8_t>(*at_)]) ++at_;
    if (at_ == end_) return Fail("a string is not closed");
    if (Take('"')) return true;
    if (*at_ != '\\') return Fail("a string has a control character");
    if (!SkipEscape()) return Fail("a string has an unknown escape");
  }
}

bool JsonScanner::SkipEscape() {
  constexpr std::string_view kShort = "\"\\/bfnrt";
  constexpr ptrdiff_t kHexDigits = 4;
  ++at_;
  if (at_ == end_) return false;
  const char c = *at_++;
  if (c != 'u') return kShort.find(c) != std::string_view::npos;
  if (end_ - at_ < kHexDigits || !std::all_of(at_, at_ + kHexDigits, IsHex)) return false;
  at_ += kHexDigits;
  return true;
}

bool JsonScanner::SkipWord(std::string_view word) {
  const std::string_view rest(at_, static_cast<size_t>(end_ - at_));
  if (!rest.starts_with(word)) return Fail("it has a word that JSON does not have");
  at_ += word.size();
  return true;
}

bool JsonScanner::SkipDigits() {
  const char* const first = at_;
  at_ = std::find_if_not(at_, end_, IsDigit);
  return at_ != first;
}

bool JsonScanner::SkipNumber() {
  constexpr const char* kProblem = "a number is not written as JSON writes it";
  Take('-');
  if (!Take('0') && !SkipDigits()) return Fail(kProblem);
  if (Take('.') && !SkipDigits()) return Fail(kProblem);
  if (Take('e') || Take('E')) {
    if (!Take('+')) Take('-');
    if (!SkipDigits()) return Fail(kProblem);
  }
  return true;
}

}  // namespace lorry::door
