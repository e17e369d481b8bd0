// Walks over JSON text without converting anything: what a value is, and where it ends.
//
// The strict grammar of RFC 8259, so that what the door accepts has one meaning to everybody, in one
// pass that costs a prompt of token ids what it costs a prompt of text. Valid UTF-8 is the caller's
// to check.
#pragma once

#include <string_view>

namespace lorry::door {

// Python's json gives up at about 1,000 levels and answers 500; no API of the engines nests deeper
// than 20.
inline constexpr int kMaxJsonDepth = 64;

enum class JsonKind { kObject, kArray, kString, kNumber, kBool, kNull };

class JsonScanner {
 public:
  explicit JsonScanner(std::string_view text)
      : begin_(text.data()), at_(text.data()), end_(text.data() + text.size()) {}

  // Each moves over what it names, if it is there. False stops the walk: see problem().
  void SkipSpace();
  bool Take(char c);
  bool SkipString();
  // One value with all that is in it; `depth` is 1 for what no other value contains.
  bool SkipValue(int depth, JsonKind* kind);

  const char* at() const { return at_; }
  bool AtEnd() const { return at_ == end_; }
  const char* problem() const { return problem_; }

 private:
  bool Fail(const char* problem);
  bool SkipObject(int depth);
  bool SkipArray(int depth);
  bool SkipEscape();
  bool SkipWord(std::string_view word);
  bool SkipNumber();
  bool SkipDigits();
  void SkipTokenIds();

  const char* const begin_;
  const char* at_;
  const char* const end_;
  const char* no_token_ids_before_ = nullptr;  // it was tried
  const char* problem_ = "it is not JSON";
};

}  // namespace lorry::door
